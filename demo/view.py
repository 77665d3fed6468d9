"""What a person sees while it runs: a live table on a terminal, plain lines elsewhere."""

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.crm.deliveries import Outcome
from demo.ledger import Entry, Ledger
from demo.stage import USERNAME, Stage
from demo.watch import Watch
from messenger.topics import Topic

TOTALS: tuple[tuple[str, tuple[Outcome, ...]], ...] = (
    ("opened", (Outcome.OPENED, Outcome.PROVISIONED)),
    ("applied", (Outcome.APPLIED, Outcome.CLOSED, Outcome.NAMED)),
    ("duplicate", (Outcome.DUPLICATE,)),
    ("stale", (Outcome.STALE,)),
    ("parked", (Outcome.PARKED,)),
    ("failed", (Outcome.FAILED_FIRST,)),
    ("dead", (Outcome.DEAD,)),
)
_STYLES = {
    Outcome.OPENED: "cyan",
    Outcome.PROVISIONED: "cyan",
    Outcome.FAILED_FIRST: "magenta",
    Outcome.CLOSED: "blue",
    Outcome.NAMED: "dim",
    Outcome.APPLIED: "green",
    Outcome.DUPLICATE: "dim",
    Outcome.STALE: "dim",
    Outcome.PARKED: "yellow",
    Outcome.DEAD: "red",
}
_HEAD_LINES = 5
"""What the table of records takes beside the records, and a line for the cursor."""
_FEWEST_EVENTS = 4
_SHORT = {"duplicate": "dup."}
_TOTALS_EVERY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to show."""

    stage: Stage
    ledger: Ledger
    watch: Watch
    deals: Counter[str]
    """How many deals crm was told what of."""
    topics: tuple[Topic, ...]
    seed: int
    page: str
    who: str
    """Where someone's chats are shown live, and whose."""
    doing: str
    """What goes on now, for the last line."""


class View(Protocol):
    """Shows a picture again and again."""

    def open(self) -> None:
        """Begin."""

    def show(self, picture: Picture, seconds: float) -> None:
        """Show `picture`, `seconds` after the beginning."""

    def close(self) -> None:
        """Leave the last picture standing."""


def make_view(console: Console) -> View:
    """The one that fits where the output goes."""
    return LiveView(console) if console.is_terminal else PlainView()


class PlainView:
    """A line for each record as it is settled, and the totals now and then."""

    def __init__(self) -> None:
        self._told: dict[Entry, int] = {}
        self._next_totals = _TOTALS_EVERY_SECONDS

    def open(self) -> None:
        """Nothing to begin with."""

    def show(self, picture: Picture, seconds: float) -> None:
        for entry in picture.ledger.recent:
            if len(entry.seen) > self._told.get(entry, 0):
                delivery = entry.fate.delivery
                print(
                    f"{seconds:6.1f} s  {delivery.title} | crm: {delivery.story} | messenger: {entry.did}", flush=True
                )
            self._told[entry] = len(entry.seen)
        self._told = {entry: self._told[entry] for entry in picture.ledger.recent}
        if seconds >= self._next_totals:
            self._next_totals = seconds + _TOTALS_EVERY_SECONDS
            print(f"{seconds:6.1f} s  {totals(picture.ledger)}; lag {_lag(picture)}; {_deals(picture)}", flush=True)

    def close(self) -> None:
        """Nothing stands open."""


class LiveView:
    """The live table."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def open(self) -> None:
        self._live.start()

    def show(self, picture: Picture, seconds: float) -> None:
        above, below = Group(_where(picture, seconds), _topics(picture)), _processes(picture)
        taken = sum(len(self._console.render_lines(part, pad=False)) for part in (above, below))
        rows = max(_FEWEST_EVENTS, self._console.height - taken - _HEAD_LINES)
        self._live.update(Group(above, _events(picture.ledger, rows), below), refresh=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.stop()


def totals(ledger: Ledger) -> str:
    """The totals in one line."""
    parts = [f"{name} {sum(map(ledger.count, outcomes))}" for name, outcomes in TOTALS]
    return f"{sum(ledger.sent.values())} records sent; {', '.join(parts)}"


def _deals(picture: Picture) -> str:
    ready, failed = picture.deals["Ready"], picture.deals["Failed"]
    poison = f"; {failed} poison: re-enqueue in the admin, Deal chat provisioning" if failed else ""
    return f"deals: {ready} ready{poison}"


def _lag(picture: Picture) -> str:
    lags = [picture.watch.lag.get(topic.contract) for topic in picture.topics]
    return "unknown" if None in lags else str(sum(lag for lag in lags if lag))


def _where(picture: Picture, seconds: float) -> Text:
    minutes, rest = divmod(int(seconds), 60)
    return Text.assemble(
        ("messenger", "bold"),
        f" with a simulated crm, {minutes}:{rest:02} (--seed={picture.seed})\n",
        ("admin ", "bold"),
        (picture.stage.url, "underline"),
        f"  user {USERNAME}, password {picture.stage.password}\n",
        ("chats ", "bold"),
        (f"of {picture.who}, live", f"underline link {picture.page}"),
        f": the page whose address stands above; {_deals(picture)}",
    )


def _topics(picture: Picture) -> Table:
    table = Table(expand=True, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("What came in", no_wrap=True, ratio=1)
    for name in ("sent", *(name for name, _ in TOTALS), "lag"):
        table.add_column(_SHORT.get(name, name), justify="right")
    for topic in picture.topics:
        did = [sum(picture.ledger.did[topic.contract, outcome] for outcome in outcomes) for _, outcomes in TOTALS]
        lag = picture.watch.lag.get(topic.contract)
        cells = [str(number or "") for number in did]
        table.add_row(
            topic.contract.removeprefix("pin.crm.").removesuffix(".v1"),
            str(picture.ledger.sent[topic.contract]),
            *cells,
            "?" if lag is None else str(lag),
        )
    return table


def _events(ledger: Ledger, rows: int) -> Table:
    table = Table(expand=True, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("Lead or deal", no_wrap=True, ratio=5)
    table.add_column("What crm did", no_wrap=True, ratio=10)
    table.add_column("What messenger did", no_wrap=True, ratio=8)
    for entry in list(ledger.recent)[-rows:]:
        style = _STYLES[entry.seen[-1]] if entry.seen else "dim"
        delivery = entry.fate.delivery
        table.add_row(delivery.title, delivery.story, Text(entry.did or "...", style=style))
    return table


def _processes(picture: Picture) -> Text:
    text = Text()
    for process in picture.stage.processes.all:
        well = picture.watch.healthy.get(process.name, True)
        text.append("● " if well else "✗ ", style="green" if well else "red")
        text.append(f"{process.name.removeprefix('consume_').removeprefix('run_')}  ")
    text.append(f"\n+ joined, - left, ~ other role. {picture.doing}", style="dim")
    return text
