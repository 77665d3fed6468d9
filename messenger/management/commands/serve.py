"""`manage.py serve`: the web process."""

import warnings
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from messenger import tracing
from messenger.logs import get_logger
from messenger.shutdown import StopSignal
from messenger.web_server import listening_socket, server

log = get_logger(__name__)


class Command(BaseCommand):
    """Serves the admin, the API, its event stream, `/metrics` and probes until SIGTERM or SIGINT; exit code 0."""

    help = "Serve the web: the admin, the API and its event stream, /metrics, /healthz, /readyz."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
        parser.add_argument(
            "--graceful-shutdown",
            type=int,
            default=10,
            help="seconds that open requests are given when the process is asked to stop (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            listener = listening_socket(options["host"], options["port"])
        except OSError as error:
            raise CommandError(
                f"Port {options['port']} of {options['host']} cannot be opened ({error.strerror}): name a free one "
                "with --port."
            ) from error
        tracing.configure("messenger-web")
        # Of the static files: outside of the image none have been collected, they are found where they are; and they
        # are read in threads, as they were before ASGI.
        warnings.filterwarnings("ignore", message="No directory at")
        warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")
        # uvicorn raises the signal once more when it is done; by then nobody has to be killed by it.
        with StopSignal(end_of_process=True), listener:
            log.info("serving", host=options["host"], port=listener.getsockname()[1])
            server(graceful_shutdown=options["graceful_shutdown"]).run(sockets=[listener])
        tracing.flush()
