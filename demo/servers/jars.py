"""Apache Kafka's jars: fetched by jgo as its lock file says, checked, and kept in a cache.

jgo's own way from a lock file to a folder of jars is not taken: it fetches a Java 11 to sort the jars by.
"""

from __future__ import annotations

import hashlib
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from demo.servers.errors import ServerUnavailable
from demo.servers.server import Progress
from demo.servers.workspaces import locked

LOCK_FILE = Path(__file__).with_name("jgo.lock.toml")
_CHANGED = f"its SHA-256 sum is not the one in {LOCK_FILE.name}"

_PARALLEL_DOWNLOADS = 4
_TRIES = 3
_REPORT_EVERY = 10
_TIMEOUT_SECONDS = 10
REMEDY = "set KAFKA_BOOTSTRAP_SERVERS to a running Apache Kafka, or start one with compose.yaml"
"""What a person can do if the jars cannot be had; the end of a sentence."""


@dataclass(frozen=True)
class Jar:
    """One line of the lock file."""

    group: str
    artifact: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    def path(self, repository: Path) -> Path:
        folder = repository.joinpath(*self.group.split("."), self.artifact, self.version)
        return folder / f"{self.artifact}-{self.version}.jar"

    def intact(self, repository: Path) -> bool:
        try:
            content = self.path(repository).read_bytes()
        except FileNotFoundError:
            return False
        return hashlib.sha256(content).hexdigest() == self.sha256


def locked_jars(lock_file: Path = LOCK_FILE) -> list[Jar]:
    """The jars of the lock file, in the order of the class path."""
    entries = tomllib.loads(lock_file.read_text(encoding="utf-8"))["dependencies"]
    return [Jar(entry["groupId"], entry["artifactId"], entry["version"], entry["sha256"]) for entry in entries]


def class_path(cache: Path, progress: Progress, *, offline: bool = False) -> list[Path]:
    """Every jar of the lock file, from the cache or fetched into it; each is checked, whichever it is.

    Raises ``ServerUnavailable`` if one cannot be fetched or is not what the lock file says.
    """
    repository = cache / "maven"
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServerUnavailable(
            f"Apache Kafka's jars cannot be kept in {cache} ({error.strerror}); {REMEDY}."
        ) from error
    jars = locked_jars()
    # Two runs may start at once: the second waits and then finds the jars there.
    with locked(cache / "maven.lock"):
        missing = [jar for jar in jars if not jar.intact(repository)]
        if missing:
            _fetch_all(missing, repository, progress, offline=offline)
    return [jar.path(repository) for jar in jars]


def _fetch_all(jars: list[Jar], repository: Path, progress: Progress, *, offline: bool) -> None:
    progress(f"downloading Apache Kafka, once: {len(jars)} jars")
    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
        downloads = [pool.submit(_fetch, jar, repository, offline=offline) for jar in jars]
        try:
            for number, download in enumerate(as_completed(downloads), start=1):
                download.result()
                if number % _REPORT_EVERY == 0:
                    progress(f"downloading Apache Kafka: {number} of {len(jars)} jars")
        finally:
            # After a failure, or Ctrl-C, the rest is of no use.
            pool.shutdown(cancel_futures=True)


def _fetch(jar: Jar, repository: Path, *, offline: bool) -> None:
    # Imported late: with all jars in the cache it is not needed, and takes a while.
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=repository, timeout=_TIMEOUT_SECONDS, offline=offline)
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    problem = _CHANGED if jar.path(repository).exists() else "it is not in the cache"
    for _ in range(1 if offline else _TRIES):
        # jgo takes any file of that name for the artifact, also half of one, or a changed one.
        jar.path(repository).unlink(missing_ok=True)
        try:
            artifact.resolve()
        except (OSError, RuntimeError) as error:  # what requests and jgo raise; their texts name hosts
            problem = problem if offline else f"the download failed ({type(error).__name__})"
            continue
        if jar.intact(repository):
            return
        problem = _CHANGED
    jar.path(repository).unlink(missing_ok=True)
    raise ServerUnavailable(f"Apache Kafka's jar {jar} cannot be had: {problem}; {REMEDY}.")
