"""Every setting of every process: read from the environment here, validated here, and nowhere else.

An invalid value raises `ImproperlyConfigured` with sentences that name the variables; `manage.py` and
`messenger.asgi` turn that into exit code 2. Times are seconds unless a name says otherwise.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from environs import Env, EnvValidationError, validate

BASE_DIR = Path(__file__).resolve().parent.parent
DEVELOPMENT_SECRET = "not-a-secret-for-development-only-0123456789abcdef"  # noqa: S105 (refused in production)

env = Env(eager=False)
_problems: list[str] = []

# Not above what PostgreSQL's timeouts hold, 31 bits of milliseconds.
_positive = validate.Range(min=0, min_inclusive=False, max=2_147_483)
_not_negative = validate.Range(min=0)


def _seconds(name: str, default: float) -> float:
    value = env.float(name, default, validate=_positive)
    # environs defers its verdict to seal(); until then a bad value reads as None.
    return default if value is None else value


def _count(name: str, default: int, *, at_least: int = 1) -> int:
    value = env.int(name, default, validate=validate.Range(min=at_least))
    return default if value is None else value


def _text(name: str, default: str, *, one_of: tuple[str, ...] = ()) -> str:
    value = env.str(name, default, validate=validate.OneOf(one_of) if one_of else None)
    return default if value is None else value


# --- Django -----------------------------------------------------------------------------------------

ENVIRONMENT = _text("MESSENGER_ENVIRONMENT", "production", one_of=("production", "development"))
DEVELOPMENT = ENVIRONMENT == "development"
DEBUG = False

SECRET_KEY = _text("SECRET_KEY", DEVELOPMENT_SECRET)
if not DEVELOPMENT and SECRET_KEY == DEVELOPMENT_SECRET:
    _problems.append("SECRET_KEY is not set: give production a secret of its own, 32 characters or more.")
elif not DEVELOPMENT and len(SECRET_KEY) < 32:
    _problems.append("SECRET_KEY is too short: give it 32 characters or more.")

ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"]) or []
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", []) or []
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEVELOPMENT
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.bool("BEHIND_TLS_PROXY", False) else None

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_prometheus",
    "messenger",
    "outbox",
    "chats",
    "provisioning",
]
if importlib.util.find_spec("demo") is not None:
    # The demo is left out of the production image; nothing but its own command needs it.
    INSTALLED_APPS.append("demo")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "messenger.urls"
ASGI_APPLICATION = "messenger.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
# Read from where they are when the process starts: nothing is to be collected before.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- PostgreSQL -------------------------------------------------------------------------------------


def _database(url: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = dict(dj_database_url.parse(url))
    except Exception:
        parsed = {}
    if not str(parsed.get("ENGINE", "")).endswith("postgresql") or not parsed.get("NAME"):
        _problems.append("DATABASE_URL is not a PostgreSQL URL: write postgresql://user:password@host:5432/name.")
        return {}
    options = {
        "connect_timeout": 5,
        # A host that vanished is noticed by the socket, not by a request of minutes.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "application_name": "messenger",
        **parsed.get("OPTIONS", {}),
    }
    # Server-side cursors outlive a transaction and so break behind a transaction pooler.
    return parsed | {
        "OPTIONS": options,
        "DISABLE_SERVER_SIDE_CURSORS": True,
        # Under ASGI each request may get a thread of its own: a connection kept for the next one would not be
        # found again. Workers are not concerned, they keep their connection whatever its age.
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
    }


DATABASE_URL = _text("DATABASE_URL", "")
if not DATABASE_URL and not DEVELOPMENT:
    _problems.append("DATABASE_URL is not set: write postgresql://user:password@host:5432/name.")
DATABASES = {"default": _database(DATABASE_URL or "postgresql://messenger@127.0.0.1:5432/messenger")}
# NOTIFY does not pass a transaction pooler: where DATABASE_URL names one, this names the server itself.
LISTEN_DATABASE_URL = _text("LISTEN_DATABASE_URL", "")
LISTEN_DATABASE = _database(LISTEN_DATABASE_URL) if LISTEN_DATABASE_URL else DATABASES["default"]

# --- Kafka ------------------------------------------------------------------------------------------

KAFKA_BOOTSTRAP_SERVERS = _text("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092" if DEVELOPMENT else "")
if not KAFKA_BOOTSTRAP_SERVERS:
    _problems.append("KAFKA_BOOTSTRAP_SERVERS is not set: write host:port, several separated by commas.")
KAFKA_SECURITY_PROTOCOL = _text(
    "KAFKA_SECURITY_PROTOCOL", "PLAINTEXT", one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
)
KAFKA_SASL_MECHANISM = _text(
    "KAFKA_SASL_MECHANISM", "SCRAM-SHA-512", one_of=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
)
KAFKA_SASL_USERNAME = _text("KAFKA_SASL_USERNAME", "")
KAFKA_SASL_PASSWORD = _text("KAFKA_SASL_PASSWORD", "")
KAFKA_SSL_CA_LOCATION = _text("KAFKA_SSL_CA_LOCATION", "")
KAFKA_SSL_CERTIFICATE_LOCATION = _text("KAFKA_SSL_CERTIFICATE_LOCATION", "")
KAFKA_SSL_KEY_LOCATION = _text("KAFKA_SSL_KEY_LOCATION", "")
if KAFKA_SECURITY_PROTOCOL.startswith("SASL") and not (KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD):
    _problems.append(f"KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD must be set for {KAFKA_SECURITY_PROTOCOL}.")
KAFKA_TOPIC_PREFIX = _text("KAFKA_TOPIC_PREFIX", "")
KAFKA_GROUP_PROTOCOL = _text("KAFKA_GROUP_PROTOCOL", "consumer", one_of=("consumer", "classic"))

# --- Consumers --------------------------------------------------------------------------------------

CONSUMER_BATCH_SIZE = _count("CONSUMER_BATCH_SIZE", 500)
CONSUMER_MAX_POLL_INTERVAL = _seconds("CONSUMER_MAX_POLL_INTERVAL", 300)
CONSUMER_SESSION_TIMEOUT = _seconds("CONSUMER_SESSION_TIMEOUT", 45)
CONSUMER_LOCK_TIMEOUT = _seconds("CONSUMER_LOCK_TIMEOUT", 5)
CONSUMER_STATEMENT_TIMEOUT = _seconds("CONSUMER_STATEMENT_TIMEOUT", 30)
CONSUMER_DLQ_BUDGET = _count("CONSUMER_DLQ_BUDGET", 100)
CONSUMER_DLQ_BUDGET_WINDOW = _seconds("CONSUMER_DLQ_BUDGET_WINDOW", 3600)
INFRASTRUCTURE_BACKOFF_BASE = _seconds("INFRASTRUCTURE_BACKOFF_BASE", 1)
INFRASTRUCTURE_BACKOFF_CAP = _seconds("INFRASTRUCTURE_BACKOFF_CAP", 60)
LEAD_NOT_PROVISIONED_BACKOFF_BASE = _seconds("LEAD_NOT_PROVISIONED_BACKOFF_BASE", 1)
LEAD_NOT_PROVISIONED_BACKOFF_CAP = _seconds("LEAD_NOT_PROVISIONED_BACKOFF_CAP", 60)
LEAD_NOT_PROVISIONED_MAX_ATTEMPTS = _count("LEAD_NOT_PROVISIONED_MAX_ATTEMPTS", 10)
# A worker whose loop has not turned for this long is reported dead by /healthz.
HEALTH_STALL_AFTER = _seconds("HEALTH_STALL_AFTER", 120)
METRICS_PORT = _count("METRICS_PORT", 9100, at_least=0)

# --- Outbox relay -----------------------------------------------------------------------------------

OUTBOX_POLLING_INTERVAL = _seconds("OUTBOX_POLLING_INTERVAL", 1)
OUTBOX_BATCH_SIZE = _count("OUTBOX_BATCH_SIZE", 500)
OUTBOX_MAX_ATTEMPTS = _count("OUTBOX_MAX_ATTEMPTS", 5)
OUTBOX_DELIVERY_TIMEOUT = _seconds("OUTBOX_DELIVERY_TIMEOUT", 30)
OUTBOX_LOCK_TTL = _seconds("OUTBOX_LOCK_TTL", 15)
RETENTION_DAYS = _count("RETENTION_DAYS", 14)

# --- Retry job (ChatProvisionRetryOptions of the source document) -----------------------------------

PROVISION_RETRY_POLLING_INTERVAL = _seconds("PROVISION_RETRY_POLLING_INTERVAL", 60)
PROVISION_RETRY_BATCH_SIZE = _count("PROVISION_RETRY_BATCH_SIZE", 100)
PROVISION_RETRY_MAX_ATTEMPTS = _count("PROVISION_RETRY_MAX_ATTEMPTS", 10)
PROVISION_RETRY_MAX_RUN_DURATION = _seconds("PROVISION_RETRY_MAX_RUN_DURATION", 180)
PROVISION_RETRY_LOCK_TTL = _seconds("PROVISION_RETRY_LOCK_TTL", 300)
PROVISION_RETRY_STUCK_AFTER = _seconds("PROVISION_RETRY_STUCK_AFTER", 300)
PROVISION_RETRY_BACKOFF_BASE = _seconds("PROVISION_RETRY_BACKOFF_BASE", 60)
PROVISION_RETRY_BACKOFF_FACTOR = _seconds("PROVISION_RETRY_BACKOFF_FACTOR", 2.0)
PROVISION_RETRY_BACKOFF_CAP = _seconds("PROVISION_RETRY_BACKOFF_CAP", 900)

for _larger, _smaller in (
    ("PROVISION_RETRY_LOCK_TTL", "PROVISION_RETRY_MAX_RUN_DURATION"),
    ("CONSUMER_MAX_POLL_INTERVAL", "CONSUMER_LOCK_TIMEOUT"),
):
    if globals()[_larger] <= globals()[_smaller]:
        _problems.append(f"{_larger} ({globals()[_larger]:g} s) must exceed {_smaller} ({globals()[_smaller]:g} s).")
for _cap, _base in (
    ("PROVISION_RETRY_BACKOFF_CAP", "PROVISION_RETRY_BACKOFF_BASE"),
    ("LEAD_NOT_PROVISIONED_BACKOFF_CAP", "LEAD_NOT_PROVISIONED_BACKOFF_BASE"),
    ("INFRASTRUCTURE_BACKOFF_CAP", "INFRASTRUCTURE_BACKOFF_BASE"),
):
    if globals()[_cap] < globals()[_base]:
        _problems.append(f"{_cap} ({globals()[_cap]:g} s) must not be below {_base} ({globals()[_base]:g} s).")
if PROVISION_RETRY_BACKOFF_FACTOR < 1:
    _problems.append("PROVISION_RETRY_BACKOFF_FACTOR must be 1 or more.")

# --- People online ----------------------------------------------------------------------------------

JWT_ALGORITHM = _text("JWT_ALGORITHM", "HS256", one_of=("HS256", "RS256"))
# For RS256 the public key in PEM; an environment that holds no line breaks may write them as \\n.
JWT_KEY = _text("JWT_KEY", DEVELOPMENT_SECRET if DEVELOPMENT else "").replace("\\n", "\n")
JWT_AUDIENCE = _text("JWT_AUDIENCE", "")
JWT_ISSUER = _text("JWT_ISSUER", "")
if not DEVELOPMENT and JWT_KEY == DEVELOPMENT_SECRET:
    _problems.append("JWT_KEY is the one for development: give production a key of its own.")
elif JWT_KEY and JWT_ALGORITHM == "HS256" and len(JWT_KEY.encode()) < 32:
    _problems.append("JWT_KEY is too short for HS256: give it 32 bytes or more.")
elif JWT_KEY and JWT_ALGORITHM == "RS256" and "PUBLIC KEY" not in JWT_KEY:
    _problems.append("JWT_KEY is not a public key in PEM, which RS256 needs.")

API_DATABASE_CONNECTIONS = _count("API_DATABASE_CONNECTIONS", 4)
API_DATABASE_TIMEOUT = _seconds("API_DATABASE_TIMEOUT", 5)
STREAM_HEARTBEAT = _seconds("STREAM_HEARTBEAT", 15)
STREAM_SEND_TIMEOUT = _seconds("STREAM_SEND_TIMEOUT", 10)
# How often the LISTEN session is proven to deliver; one that stays silent for three times as long is given up.
STREAM_KEEPALIVE = _seconds("STREAM_KEEPALIVE", 5)
# Paths that are answered outside of Django, by their ASGI applications: a stream must see its client's pace.
ASGI_ROUTES = {"/api/v1/stream": "chats.stream_view.stream"}

# --- Logs -------------------------------------------------------------------------------------------

LOG_LEVEL = _text("LOG_LEVEL", "INFO", one_of=("DEBUG", "INFO", "WARNING", "ERROR"))
LOG_FORMAT = _text("LOG_FORMAT", "json", one_of=("json", "console"))
OTEL_EXPORTER_OTLP_ENDPOINT = _text("OTEL_EXPORTER_OTLP_ENDPOINT", "")
LOGGING_CONFIG = "messenger.logs.configure"
LOGGING = {"level": LOG_LEVEL, "format": LOG_FORMAT}

try:
    env.seal()
except EnvValidationError as _error:
    _found = (
        _error.error_messages if isinstance(_error.error_messages, Mapping) else {"environment": _error.error_messages}
    )
    _problems += [f"{name} is invalid: {' '.join(messages)}" for name, messages in _found.items()]
if _problems:
    raise ImproperlyConfigured("messenger cannot start. " + " ".join(_problems))
