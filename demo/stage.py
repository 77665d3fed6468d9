"""Everything that runs before crm begins to speak: servers, schema, topics, an admin user, the processes."""

import io
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dj_database_url
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError, connections

from demo.broker import remove_topics
from demo.processes import WORKERS, Processes
from demo.servers import EmbeddedKafka, EmbeddedPostgres
from demo.servers.ports import LOOPBACK
from demo.servers.workspaces import Workspace
from messenger.faults import MessengerError

USERNAME = "demo"
# A worker that a busy machine holds up for some seconds keeps its partitions: nothing is delivered to it twice.
_PATIENT = {"group.consumer.session.timeout.ms": "45000"}
# Nobody watches a retry of minutes: the job ticks each second, and four attempts are all.
_IMPATIENT = {
    "PROVISION_RETRY_POLLING_INTERVAL": "1",
    "PROVISION_RETRY_BACKOFF_BASE": "1",
    "PROVISION_RETRY_BACKOFF_CAP": "3",
    "PROVISION_RETRY_MAX_ATTEMPTS": "4",
}
Progress = Callable[[str], None]


class NotForProduction(MessengerError):
    """The demonstration makes an admin user and fills tables."""


class DatabaseAway(MessengerError):
    """The database that DATABASE_URL names cannot be used."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What is up."""

    processes: Processes
    servers: tuple[EmbeddedPostgres | EmbeddedKafka, ...]
    """Those that were started here."""
    web: str
    """Address of the web process."""
    password: str
    run: str
    """What makes this run's ids and topics differ from those of others on the same servers; empty on our own."""
    logs: Path

    @property
    def url(self) -> str:
        """Address of the admin."""
        return f"{self.web}/admin/"

    def check(self) -> None:
        """Raise ServerUnavailable or ProcessEnded if anything has ended by itself."""
        for server in self.servers:
            server.check_running()
        self.processes.check()


@contextmanager
def set_up(progress: Progress) -> Iterator[Stage]:
    """Start everything; it all ends with the context. The logs stay if that ends by an exception.

    Servers that the environment names are used instead of our own: rows of this run stay there, its topics do not.
    """
    if not settings.DEVELOPMENT:
        raise NotForProduction("The demonstration fills tables and makes an admin user: not in production.")
    with ExitStack() as stack:
        servers = _servers(stack, progress)
        run = "" if len(servers) == 2 else f"demo-{secrets.token_hex(3)}."
        settings.KAFKA_TOPIC_PREFIX += run
        settings.PROVISION_RETRY_MAX_ATTEMPTS = int(_IMPATIENT["PROVISION_RETRY_MAX_ATTEMPTS"])
        progress("creating the schema and the topics")
        _migrate()
        call_command("create_topics", stdout=io.StringIO())
        if run:
            stack.callback(remove_topics)
        password = _admin_user()
        logs = stack.enter_context(_folder())
        progress(f"starting {len(WORKERS)} workers and the web process, which log to {logs}")
        processes = stack.enter_context(Processes(folder=logs, environment=_environment()))
        processes.await_healthy()
        web = f"http://{LOOPBACK}:{processes.web_port}"
        yield Stage(processes, servers, web, password, run, logs)


def _servers(stack: ExitStack, progress: Progress) -> tuple[EmbeddedPostgres | EmbeddedKafka, ...]:
    started: list[EmbeddedPostgres | EmbeddedKafka] = []
    if not settings.DATABASE_URL:
        postgres = EmbeddedPostgres(progress=progress)
        stack.callback(postgres.close)
        postgres.start()
        started.append(postgres)
        # These settings were read before there was a server to name.
        settings.DATABASE_URL = postgres.url
        connections["default"].settings_dict.update(dj_database_url.parse(postgres.url))
    if "KAFKA_BOOTSTRAP_SERVERS" not in os.environ:
        kafka = EmbeddedKafka(settings=_PATIENT, progress=progress)
        stack.callback(kafka.close)
        kafka.start()
        started.append(kafka)
        settings.KAFKA_BOOTSTRAP_SERVERS = kafka.bootstrap_servers
    stack.callback(connections.close_all)
    return tuple(started)


def _environment() -> dict[str, str]:
    return {
        "MESSENGER_ENVIRONMENT": "development",
        "DATABASE_URL": settings.DATABASE_URL,
        "KAFKA_BOOTSTRAP_SERVERS": settings.KAFKA_BOOTSTRAP_SERVERS,
        "KAFKA_TOPIC_PREFIX": settings.KAFKA_TOPIC_PREFIX,
        **_IMPATIENT,
    }


def _migrate() -> None:
    try:
        call_command("migrate", verbosity=0)
    except OperationalError as error:
        raise DatabaseAway(f"The PostgreSQL that DATABASE_URL names cannot be used: {error}") from error


def _admin_user() -> str:
    """A superuser with a fresh password; the password."""
    password = secrets.token_urlsafe(9)
    user, _ = User.objects.get_or_create(username=USERNAME)
    user.set_password(password)
    user.is_staff = user.is_superuser = True
    user.save()
    return password


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the logs. After an error it stays to be read, until the next run finds it."""
    workspace = Workspace(Path(tempfile.gettempdir()), "demo")
    try:
        yield workspace.path
    except Exception:
        raise
    except BaseException:
        workspace.remove()
        raise
    else:
        workspace.remove()
