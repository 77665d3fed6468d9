"""Every invalid setting is one sentence that names the variable, and exit code 2."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

ROOT = Path(__file__).resolve().parents[2]
SECRET = "s" * 40
PRODUCTION = {
    "MESSENGER_ENVIRONMENT": "production",
    "SECRET_KEY": SECRET,
    "JWT_KEY": SECRET,
    "DATABASE_URL": "postgresql://messenger:secret@db:5432/messenger",
    "KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
}
DEVELOPMENT = {"MESSENGER_ENVIRONMENT": "development"}
SOURCE = (ROOT / "messenger/settings.py").read_text()
# Read from the code, so that a new setting is tried as well.
SECONDS = re.findall(r'_seconds\("(\w+)"', SOURCE)
COUNTS = re.findall(r'_count\("(\w+)", \d+\)', SOURCE)
CHOICES = re.findall(r'_text\(\s*"(\w+)", "[^"]*", one_of', SOURCE)


def load(monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a process with exactly this environment."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(ROOT / "messenger/settings.py"))


def refusal(monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str]) -> str:
    """What the process says as it refuses to start."""
    with pytest.raises(ImproperlyConfigured) as caught:
        load(monkeypatch, env)
    return str(caught.value)


def test_the_defaults_are_those_of_the_design(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design, section 5."""
    found = load(monkeypatch, PRODUCTION)
    prefix = "PROVISION_RETRY"
    expected = {
        f"{prefix}_POLLING_INTERVAL": 60,
        f"{prefix}_BATCH_SIZE": 100,
        f"{prefix}_MAX_ATTEMPTS": 10,
        f"{prefix}_MAX_RUN_DURATION": 180,
        f"{prefix}_LOCK_TTL": 300,
        f"{prefix}_STUCK_AFTER": 300,
        f"{prefix}_BACKOFF_BASE": 60,
        f"{prefix}_BACKOFF_FACTOR": 2.0,
        f"{prefix}_BACKOFF_CAP": 900,
        "LEAD_NOT_PROVISIONED_BACKOFF_BASE": 1,
        "LEAD_NOT_PROVISIONED_BACKOFF_CAP": 60,
        "LEAD_NOT_PROVISIONED_MAX_ATTEMPTS": 10,
        "INFRASTRUCTURE_BACKOFF_BASE": 1,
        "INFRASTRUCTURE_BACKOFF_CAP": 60,
        "KAFKA_TOPIC_PREFIX": "",
        "KAFKA_GROUP_PROTOCOL": "consumer",
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("missing", ["SECRET_KEY", "DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS"])
def test_production_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    env = {name: value for name, value in PRODUCTION.items() if name != missing}
    assert f"{missing} is not set: " in refusal(monkeypatch, env)


def test_without_a_word_it_is_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten variable must not give a process with the secret that everybody knows."""
    assert "SECRET_KEY is not set" in refusal(monkeypatch, {})


@pytest.mark.parametrize("name", ["SECRET_KEY", "JWT_KEY"])
def test_production_refuses_the_secret_of_development(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """«Production refuses to start with a default secret»."""
    default = load(monkeypatch, DEVELOPMENT)["DEVELOPMENT_SECRET"]
    text = refusal(monkeypatch, PRODUCTION | {name: default})
    assert name in text
    assert default not in text


@pytest.mark.parametrize("name", ["SECRET_KEY", "JWT_KEY"])
def test_a_secret_has_a_length(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert f"{name} is too short" in refusal(monkeypatch, PRODUCTION | {name: "short"})


def test_every_kind_of_setting_was_found_in_the_code() -> None:
    assert {"CONSUMER_LOCK_TIMEOUT", "PROVISION_RETRY_LOCK_TTL", "OUTBOX_POLLING_INTERVAL"} <= set(SECONDS)
    assert {"CONSUMER_BATCH_SIZE", "CONSUMER_DLQ_BUDGET", "LEAD_NOT_PROVISIONED_MAX_ATTEMPTS"} <= set(COUNTS)
    assert {"MESSENGER_ENVIRONMENT", "KAFKA_GROUP_PROTOCOL", "KAFKA_SECURITY_PROTOCOL", "LOG_FORMAT"} <= set(CHOICES)


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", ["0", "-1", "soon", ""])
def test_times_are_above_zero(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    assert f"{name} is invalid: " in refusal(monkeypatch, DEVELOPMENT | {name: value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", ""])
def test_counts_are_whole_and_at_least_one(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    assert f"{name} is invalid: " in refusal(monkeypatch, DEVELOPMENT | {name: value})


def test_a_port_may_be_zero_which_takes_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, DEVELOPMENT | {"METRICS_PORT": "0"})["METRICS_PORT"] == 0
    assert "METRICS_PORT is invalid: " in refusal(monkeypatch, DEVELOPMENT | {"METRICS_PORT": "-1"})


@pytest.mark.parametrize("name", CHOICES)
def test_words_are_of_a_known_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert f"{name} is invalid: " in refusal(monkeypatch, DEVELOPMENT | {name: "whatever"})


@pytest.mark.parametrize(
    "url", ["mysql://a@b/c", "postgresql://", "junk", "http://db:5432/x", "postgresql://a@b:port/c"]
)
def test_a_database_url_is_postgresqls(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    text = refusal(monkeypatch, DEVELOPMENT | {"DATABASE_URL": url})
    assert "DATABASE_URL is not a PostgreSQL URL: write postgresql://" in text


def test_a_bad_database_url_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a password."""
    assert "hunter2" not in refusal(monkeypatch, DEVELOPMENT | {"DATABASE_URL": "mysql://user:hunter2@db/name"})


def test_sasl_needs_somebody_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(monkeypatch, DEVELOPMENT | {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL"})
    assert "KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD must be set for SASL_SSL." in text


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        ("PROVISION_RETRY_LOCK_TTL", "PROVISION_RETRY_MAX_RUN_DURATION"),
        ("CONSUMER_MAX_POLL_INTERVAL", "CONSUMER_LOCK_TIMEOUT"),
    ],
)
@pytest.mark.parametrize("value", ["50", "49.5"])
def test_one_time_must_exceed_another(monkeypatch: pytest.MonkeyPatch, larger: str, smaller: str, value: str) -> None:
    """«LockTtl > MaxRunDuration» and its like; equal is not enough."""
    text = refusal(monkeypatch, DEVELOPMENT | {larger: value, smaller: "50"})
    assert f"{larger} ({value} s) must exceed {smaller} (50 s)." in text


@pytest.mark.parametrize("prefix", ["PROVISION_RETRY", "LEAD_NOT_PROVISIONED", "INFRASTRUCTURE"])
def test_a_cap_is_not_below_its_base(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    env = DEVELOPMENT | {f"{prefix}_BACKOFF_BASE": "10", f"{prefix}_BACKOFF_CAP": "9"}
    expected = f"{prefix}_BACKOFF_CAP (9 s) must not be below {prefix}_BACKOFF_BASE (10 s)."
    assert expected in refusal(monkeypatch, env)
    load(monkeypatch, env | {f"{prefix}_BACKOFF_CAP": "10"})


def test_a_factor_below_one_would_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(monkeypatch, DEVELOPMENT | {"PROVISION_RETRY_BACKOFF_FACTOR": "0.5"})
    assert "PROVISION_RETRY_BACKOFF_FACTOR must be 1 or more." in text


def test_every_problem_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to start a process five times to learn of five mistakes."""
    env = {"MESSENGER_ENVIRONMENT": "production", "CONSUMER_BATCH_SIZE": "0", "LOG_FORMAT": "xml"}
    text = refusal(monkeypatch, env)
    for name in ("SECRET_KEY", "DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS", "CONSUMER_BATCH_SIZE", "LOG_FORMAT"):
        assert name in text


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A process of Python with these settings and nothing else."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=kept | env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "env", "named"),
    [
        (("manage.py", "check"), {"CONSUMER_BATCH_SIZE": "0"}, "CONSUMER_BATCH_SIZE"),
        (("manage.py", "consume_lead_participants"), {"DATABASE_URL": "mysql://a@b/c"}, "DATABASE_URL"),
        (
            ("manage.py", "run_provision_retry", "--once"),
            {"PROVISION_RETRY_LOCK_TTL": "180"},
            "PROVISION_RETRY_LOCK_TTL",
        ),
        (("manage.py", "check"), {"MESSENGER_ENVIRONMENT": "production"}, "SECRET_KEY"),
        (("-c", "import messenger.asgi"), {"STREAM_HEARTBEAT": "0"}, "STREAM_HEARTBEAT"),
        (("-c", "import messenger.asgi"), PRODUCTION | {"JWT_KEY": ""}, "JWT_KEY is not set"),
    ],
)
def test_a_process_ends_with_a_sentence_and_exit_code_2(
    command: tuple[str, ...], env: dict[str, str], named: str
) -> None:
    done = run(*command, **(DEVELOPMENT | env))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("messenger cannot start. ")
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_good_settings_pass_the_check() -> None:
    done = run("manage.py", "check", **PRODUCTION)
    assert done.returncode == 0, done.stderr
