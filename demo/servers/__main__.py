"""Both servers in the foreground: ``python -m demo.servers``.

Prints ``DATABASE_URL=…`` and ``KAFKA_BOOTSTRAP_SERVERS=…`` on its standard output once both answer, and what
it is doing on its standard error. SIGINT, SIGTERM or SIGHUP ends it and both servers.
"""

from __future__ import annotations

import sys
import threading

from demo.servers import EmbeddedKafka, EmbeddedPostgres, ServerUnavailable
from demo.servers.interrupts import Interrupted, interruptible

_LOOK_SECONDS = 0.5


def _report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _serve() -> None:
    with EmbeddedPostgres(progress=_report) as postgres, EmbeddedKafka(progress=_report) as kafka:
        print(f"DATABASE_URL={postgres.url}")
        print(f"KAFKA_BOOTSTRAP_SERVERS={kafka.bootstrap_servers}", flush=True)
        never = threading.Event()
        while not never.wait(_LOOK_SECONDS):
            for server in (postgres, kafka):
                server.check_running()


def main() -> int:
    """Run until told to stop; the exit code."""
    try:
        with interruptible():
            _serve()
    except Interrupted:
        return 0
    except ServerUnavailable as error:
        _report(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
