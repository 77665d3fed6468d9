"""`manage.py demo`: the whole service on embedded servers, with a simulated crm (design, section 5)."""

import contextlib
import re
import secrets
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from demo.play import Options, Play
from demo.servers import ServerUnavailable
from demo.servers.interrupts import Interrupted, interruptible
from demo.stage import USERNAME, Stage, set_up
from demo.view import make_view, totals
from messenger.faults import MessengerError

_UNITS = {"s": 1, "m": 60, "h": 3600}
_RATE = 4.0
_MOST_DIFFERENCES = 30


def duration(text: str) -> float:
    """Seconds of a duration like 20s or 2m."""
    match = re.fullmatch(r"(\d+)([smh]?)", text)
    if match is None or int(match[1]) == 0:
        raise ArgumentTypeError(f"{text!r} is no duration: write 20s or 2m")
    return float(match[1]) * _UNITS[match[2] or "s"]


def pace(text: str) -> float:
    """Records per second."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1000:
        raise ArgumentTypeError(f"{text!r} is no pace: write records per second, above 0 and at most 1000")
    return value


class Command(BaseCommand):
    """Exit code 0 when interrupted, or when all is as crm says at the end of `--for`; else 1."""

    help = "Run the whole service on an embedded PostgreSQL and Apache Kafka, with a simulated crm. Ctrl-C stops it."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--for", dest="seconds", type=duration, help="end by itself after 20s, 2m, and check all")
        parser.add_argument("--seed", type=int, help="repeat the simulation of this seed")
        parser.add_argument("--rate", type=pace, default=_RATE, help="records per second (default: %(default)g)")

    def handle(self, *args: Any, **options: Any) -> None:
        seed = secrets.randbelow(10_000) if options["seed"] is None else options["seed"]
        try:
            with interruptible():
                self._run(Options(seed=seed, rate=options["rate"], seconds=options["seconds"]))
        except Interrupted:
            self._say("Everything is stopped.")
        except (MessengerError, ServerUnavailable) as error:
            raise CommandError(str(error)) from error

    def _run(self, options: Options) -> None:
        with set_up(self._progress) as stage:
            view = make_view(Console())
            play = Play(stage, options, view)
            self._tell_where(stage, *play.page())
            view.open()
            try:
                found = play.run()
            except Interrupted:
                self._say(f"Stopping. {totals(play.ledger)}.")
                raise
            self._sum_up(play, found, options)

    def _say(self, what: str) -> None:
        # The terminal whose end stops this process takes no more words.
        with contextlib.suppress(OSError):
            self.stdout.write(what)
            self.stdout.flush()

    def _progress(self, what: str) -> None:
        self._say(f"  {what}")

    def _tell_where(self, stage: Stage, page: str, who: str) -> None:
        self._say(f"Ready. Admin: {stage.url} (user {USERNAME}, password {stage.password})")
        self._say(f"The chats of {who}, live: {page}\n")

    def _sum_up(self, play: Play, found: list[str], options: Options) -> None:
        leads, deals = len(play.simulation.crm.leads), len(play.simulation.crm.deals)
        self.stdout.write(f"\nSummary (--seed={options.seed}): {totals(play.ledger)}.")
        if found:
            lines = [f"  - {each}" for each in found[:_MOST_DIFFERENCES]]
            raise DifferencesFound(
                "\n".join([f"{len(found)} differences from what crm says (logs in {play.stage.logs}):", *lines])
            )
        self.stdout.write(
            f"The chats of all {leads} leads and {deals} deals have the roster that crm says, and every feed replays\n"
            "to it. crm was told of each deal what the table says. Every record became what it should: duplicates\n"
            "and stale ones changed nothing, each broken one is a dead letter, and the deal that failed again and\n"
            "again waits for a person."
        )


class DifferencesFound(MessengerError):
    """Something is not as crm says."""
