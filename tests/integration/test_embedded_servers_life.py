"""The embedded servers live no longer than the process that started them, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from demo.servers import EmbeddedPostgres
from tests.support.own_servers import answer
from tests.support.processes import lives, processes_in
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

WAIT_SECONDS = 60.0
only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's death signal")


class Foreground:
    """``python -m demo.servers`` as another process, with a folder for temporary files of its own."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo.servers"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, beginning: str) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"it ended without a line that begins with {beginning}:\n{''.join(lines)}")

    def descendants(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found


@pytest.fixture
def foreground(shared_folder: Path) -> Iterator[Foreground]:
    running = Foreground(shared_folder)
    yield running
    running.process.kill()
    running.process.communicate()
    # Its folder is removed next: nothing may be at work there any more.
    wait_until(lambda: not processes_in(shared_folder), what="the end of every process in its folder")


def test_both_servers_in_the_foreground_until_sigterm(foreground: Foreground) -> None:
    url = foreground.read_until("DATABASE_URL=")
    bootstrap_servers = foreground.read_until("KAFKA_BOOTSTRAP_SERVERS=")
    assert answer(url, "SELECT 1") == 1
    assert AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=WAIT_SECONDS).brokers
    descendants = foreground.descendants()

    foreground.process.send_signal(signal.SIGTERM)

    assert foreground.process.wait(WAIT_SECONDS) == 0
    assert descendants
    assert not any(lives(process) for process in descendants)


at_any_moment = pytest.mark.parametrize(
    "moment",
    [
        "creating a PostgreSQL data directory",
        "starting PostgreSQL",
        "formatting Apache Kafka",
        "starting Apache Kafka",
        "KAFKA_BOOTSTRAP_SERVERS=",
    ],
)


@at_any_moment
def test_ctrl_c_pressed_twice_leaves_no_process_and_no_folder(foreground: Foreground, moment: str) -> None:
    foreground.read_until(moment)
    descendants = foreground.descendants()
    foreground.process.send_signal(signal.SIGINT)
    foreground.process.send_signal(signal.SIGINT)
    assert foreground.process.wait(WAIT_SECONDS) == 0
    assert not any(lives(process) for process in descendants)
    assert list(foreground.temporary.iterdir()) == []


@only_linux
@at_any_moment
def test_kill_9_of_the_parent_leaves_no_process(foreground: Foreground, moment: str) -> None:
    foreground.read_until(moment)
    wait_until(lambda: bool(processes_in(foreground.temporary)), what="a child")
    descendants = foreground.descendants()
    foreground.process.kill()
    foreground.process.wait()
    wait_until(lambda: not any(lives(process) for process in descendants), what="the end of every descendant")
    # Also of those that had not been started yet when the descendants were looked up.
    wait_until(lambda: not processes_in(foreground.temporary), what="the end of every process in its folder")


@only_linux
def test_kill_9_of_the_parent_ends_a_worker_that_is_busy(foreground: Foreground) -> None:
    url = foreground.read_until("DATABASE_URL=")
    # Only closed: psycopg's own context manager would send a COMMIT into the running query.
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        busy = psutil.Process(connection.info.backend_pid)
        # It computes, and so does not look whether the server is still there.
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1e12)")
        wait_until(lambda: busy.cpu_times().user > 0.1, what="the worker computes")
        foreground.process.kill()
        wait_until(lambda: not lives(busy), what="the end of the worker")


@only_linux
def test_program_does_not_start_without_its_parent() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    # As if the parent had died between the fork and the request for its death signal.
    arguments = [str(gone.pid), str(int(signal.SIGKILL)), "-", "-", sys.executable, "-c", "print('ran')"]
    script = ROOT / "demo" / "servers" / "tied_exec.py"
    run = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert run.stdout == ""
    assert "parent is already gone" in run.stderr


@only_linux
def test_a_run_after_a_killed_one_works_and_removes_its_folder(
    foreground: Foreground, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = foreground.read_until("DATABASE_URL=")
    folder = Path(str(answer(url, "SHOW data_directory"))).parent
    foreground.read_until("KAFKA_BOOTSTRAP_SERVERS=")
    descendants = foreground.descendants()
    foreground.process.kill()
    foreground.process.wait()
    wait_until(lambda: not any(lives(process) for process in descendants), what="the end of every descendant")
    assert folder.exists()

    monkeypatch.setattr(tempfile, "tempdir", str(foreground.temporary))
    with EmbeddedPostgres() as server:
        assert answer(server.url, "SELECT 1") == 1
        assert not folder.exists()
