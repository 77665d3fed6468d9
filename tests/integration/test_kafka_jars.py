"""The jars of Apache Kafka: locked, checked, kept in a cache, and one sentence where they cannot be had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from demo.servers import EmbeddedKafka, ServerUnavailable, jars
from demo.servers.caches import default_cache
from demo.servers.ports import free_port


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
