"""What operations rely on, held to the code: alert rules, runbooks, the compose file and the image."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands
from prometheus_client import REGISTRY

from messenger import metrics

ROOT = Path(__file__).resolve().parents[2]
ALERTS = yaml.safe_load((ROOT / "ops/alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]


def test_alerts_speak_of_metrics_that_exist() -> None:
    assert metrics
    known = {sample for each in REGISTRY.collect() for sample in (each.name, each.name + "_total")}
    named = {name for rule in RULES for name in re.findall(r"messenger_\w+", rule["expr"])}
    assert named
    assert named <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_chapter_in_a_runbook(rule: dict[str, dict[str, str]]) -> None:
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    titles = re.findall(r"^## (.+)$", (ROOT / path).read_text(), re.MULTILINE)
    assert anchor in {title.lower().replace(" ", "-") for title in titles}


def test_alert_rules_fire_and_stay_silent_as_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([promtool, "test", "rules", "alerts.test.yaml"], cwd=ROOT / "ops", capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_compose_runs_every_process_by_a_command_that_exists() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    run = {service["command"][0] for service in services.values() if service.get("command")}
    workers = {name for name in get_commands() if name.startswith(("consume_", "run_"))}
    assert workers <= run
    assert run <= set(get_commands())


def test_the_image_takes_what_production_needs_and_leaves_the_demo_out() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) \./\1$", dockerfile, re.MULTILINE))
    assert copied == {"messenger", "outbox", "chats", "provisioning"}
    assert "--require-hashes" in dockerfile
    assert re.search(r"^USER \d+$", dockerfile, re.MULTILINE)
    assert "demo" in (ROOT / ".dockerignore").read_text().splitlines()
