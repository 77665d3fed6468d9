"""The demonstration: its check against the database, and the command as a process that leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka.admin import AdminClient

from chats.models import Chat, ChatEvent, Participant
from demo.check import rosters
from demo.crm.model import Crm
from demo.crm.simulation import Simulation
from tests.conftest import database_url
from tests.support.processes import lives
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MOMENT = datetime(2026, 3, 1, 10, tzinfo=UTC)
SECONDS = 120.0
only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's death signal")


def test_the_check_names_every_kind_of_difference(tables: None) -> None:
    simulation = Simulation(Crm(1, clock=lambda: MOMENT))
    while not simulation.crm.leads:
        assert simulation.peek() is not None
        simulation.take()
    (subject,) = simulation.subjects()
    lead, title = subject.id, subject.title
    ((user, role),) = subject.roster.items()
    assert list(rosters(simulation)) == [f"{title}: there is no chat"]

    chat = Chat.objects.create(kind="Lead", lead_id=lead, title=title, last_seq=2)
    member = Participant.objects.create(chat=chat, user_id=user, role=role, joined_at=MOMENT)
    facts = [
        ChatEvent.objects.create(chat=chat, seq=1, type="LeadChatProvisioned", occurred_at=MOMENT),
        ChatEvent.objects.create(
            chat=chat, seq=2, type="ParticipantJoined", user_id=user, role=role, occurred_at=MOMENT
        ),
    ]
    assert list(rosters(simulation)) == []

    Participant.objects.filter(id=member.id).update(role="Lawyer")
    assert any("(Lawyer); crm says" in each for each in rosters(simulation))
    assert any("the feed replays to" in each for each in rosters(simulation))
    Participant.objects.filter(id=member.id).update(role=role, removed_at=MOMENT)
    assert any("the roster is empty; crm says" in each for each in rosters(simulation))
    Participant.objects.filter(id=member.id).update(removed_at=None)
    Chat.objects.filter(id=chat.id).update(lead_member_version=3)
    assert list(rosters(simulation)) == [f"{title}: version 3; crm says None"]
    Chat.objects.filter(id=chat.id).update(lead_member_version=None)
    facts[0].delete()
    assert list(rosters(simulation)) == [f"{title}: the feed's numbers have gaps"]


# --- the command as a process ----------------------------------------------------------------------


class Demo:
    """`manage.py demo` with servers of its own."""

    def __init__(self, *options: str, command: Sequence[str] = ("manage.py", "demo"), **env: str) -> None:
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115 (closed with the process)
        self.folder = tempfile.TemporaryDirectory(prefix="demo-test-", dir="/tmp")
        Path(self.folder.name).chmod(0o1777)
        own = {"MESSENGER_ENVIRONMENT": "development", "TMPDIR": self.folder.name}
        ours = ("DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS")
        self.process = subprocess.Popen(
            [sys.executable, *command, *options],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name not in ours} | own | env,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._seen: set[psutil.Process] = set()

    @property
    def output(self) -> str:
        return os.pread(self._output.fileno(), 1 << 24, 0).decode()

    def wait_for(self, text: str) -> None:
        def said() -> bool:
            self.descendants()
            assert text in self.output or self.process.poll() is None, self.output
            return text in self.output

        wait_until(said, seconds=SECONDS, what=text)

    def descendants(self) -> set[psutil.Process]:
        """Every process that was seen to come of it, and lives."""
        with suppress(psutil.NoSuchProcess):
            self._seen.update(psutil.Process(self.process.pid).children(recursive=True))
        return {process for process in self._seen if lives(process)}

    def wait(self) -> int:
        def ended() -> bool:
            self.descendants()
            return self.process.poll() is not None

        wait_until(ended, seconds=SECONDS, what=f"the end of the demo:\n{self.output[-2000:]}")
        return int(self.process.returncode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._output.close()
        for process in self.descendants():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.folder.cleanup()


@pytest.fixture
def demo() -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*options: str, **changes: Any) -> Demo:
        started.append(Demo(*options, **changes))
        return started[-1].__enter__()

    yield start
    for each in started:
        each.__exit__(None, None, None)


@pytest.mark.slow
def test_for_ends_by_itself_with_every_record_as_crm_says(demo: Callable[..., Demo]) -> None:
    run = demo("--for=6s", "--seed=1", "--rate=15")
    run.wait_for("Ready. Admin: http://127.0.0.1:")
    assert len(run.descendants()) > 11, "PostgreSQL, Kafka, the workers and the web process"
    assert run.wait() == 0, run.output
    assert "have the roster that crm says" in run.output
    assert not run.descendants()
    assert not list(Path(run.folder.name).iterdir()), "the folders of logs and of servers are removed"


@pytest.mark.slow
def test_ctrl_c_stops_everything(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.wait_for("messenger: chat opened")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0, run.output
    assert not run.descendants()
    assert "Everything is stopped." in run.output
    assert not list(Path(run.folder.name).iterdir())


@pytest.mark.slow
@only_linux
def test_a_killed_make_takes_the_demo_with_it(demo: Callable[..., Demo]) -> None:
    dry_run = ["make", "--dry-run", "demo", "ARGS=", f"BIN={Path(sys.executable).parent}"]
    # Under `make test`, the options of that make would pass on to this one.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(dry_run, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    recipe = made.stdout.splitlines()[-1]
    run = demo(command=["-c", "import subprocess, sys; subprocess.call(['sh', '-c', sys.argv[1]])", recipe])
    run.wait_for("messenger: chat opened")
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not run.descendants(), seconds=SECONDS, what="nothing left of it")
    assert "Everything is stopped." in run.output


@pytest.mark.slow
@only_linux
def test_nothing_outlives_a_killed_parent(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.wait_for("Ready. Admin:")
    assert len(run.descendants()) > 6
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not run.descendants(), seconds=SECONDS, what="nothing left of it")


@pytest.mark.slow
def test_a_worker_that_ends_by_itself_is_named_with_its_log(
    demo: Callable[..., Demo], tables: None, kafka_servers: str
) -> None:
    """On servers that the environment names: of these it starts none, and leaves no topic behind."""
    run = demo(DATABASE_URL=database_url(), KAFKA_BOOTSTRAP_SERVERS=kafka_servers)
    run.wait_for("messenger: chat opened")
    workers = {argument: process for process in run.descendants() for argument in process.cmdline()}
    assert "kafka.Kafka" not in workers
    workers["consume_lead_participants"].kill()
    assert run.wait() == 1, run.output
    assert "consume_lead_participants ended by itself" in run.output
    assert '"event": "started"' in run.output
    assert not run.descendants()
    topics = AdminClient({"bootstrap.servers": kafka_servers}).list_topics(timeout=30).topics
    assert not [name for name in topics if name.startswith("demo-")]
