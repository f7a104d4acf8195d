"""Alerts fire when they should, and query metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy import ROOT
from tests.observe.families import families

ALERTS = ROOT / "deploy" / "chart" / "files" / "alerts.yml"
_END = re.compile(r"_(bucket|sum|count)$")


def promtool(*arguments: str) -> str:
    if not shutil.which("promtool"):
        pytest.skip("there is no promtool")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_well_formed() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))


def test_alerts_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_each_alert_is_tested_and_documented() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    names = {rule["alert"] for rule in group["rules"]}
    tested = Path(__file__).with_name("alerts_test.yml").read_text()
    assert {name for name in names if name not in tested} == set()
    documented = set(re.findall(r"`([A-Z]\w+)`", (ROOT / "docs" / "deploy.md").read_text()))
    assert names <= documented


def test_the_metrics_of_alerts_exist() -> None:
    existing = set(families())
    queried = {_END.sub("", name) for name in re.findall(r"\bocs_\w+", ALERTS.read_text())}
    assert queried <= existing | {"ocs_process_open_fds", "ocs_process_max_fds"}


def test_prometheus_can_read_the_configuration_of_compose() -> None:
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", str(ROOT / "deploy" / "prometheus.yml"))


def test_prometheus_understands_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """Check each query as a rule. Panels and their metrics: tests/observe/test_documents.py."""
    text = ALERTS.with_name("dashboard.json").read_text().replace("$__rate_interval", "1m")
    panels = json.loads(re.sub(r"\$(job|instance)", ".*", text))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert "SUCCESS" in promtool("check", "rules", str(tmp_path / "rules.yml"))
