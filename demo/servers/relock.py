"""Writes the lock file of Apache Kafka's jars anew: ``python -m demo.servers.relock``.

To be run after a change of ``ENDPOINTS``. Nothing else works out what Kafka needs: everything else takes what
the lock file says.
"""

from __future__ import annotations

from demo.servers.caches import default_cache
from demo.servers.jars import LOCK_FILE

# slf4j-simple of the line that Kafka's own slf4j-api is of. No artifact of log4j's beside it: its dependency
# management would replace kafka-clients by another version.
ENDPOINTS = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")


def main() -> None:
    """Resolve ``ENDPOINTS`` with all they need at run time, and write down what was found."""
    from jgo.env import LockFile
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=default_cache() / "maven")
    wanted = [context.create_dependency(endpoint) for endpoint in ENDPOINTS]
    direct, transitive = context.resolver.resolve(wanted)
    needed = [dependency for dependency in transitive if dependency.scope in ("compile", "runtime")]
    lock = LockFile.from_resolved_dependencies([*direct, *needed], environment_name="kafka")
    lock.save(LOCK_FILE)
    print(f"{LOCK_FILE.name}: {len(lock.dependencies)} jars")


if __name__ == "__main__":
    main()
