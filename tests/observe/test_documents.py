"""The dashboard shows the metrics of `/metrics`. `tests/docs` checks the manual."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.observe.families import families

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = json.loads((ROOT / "deploy" / "chart" / "files" / "dashboard.json").read_text())

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has metrics of the process")


@pytest.fixture(scope="module", name="families")
def metric_types() -> dict[str, str]:
    return families()


EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_names_follow_prometheus_conventions(families: dict[str, str]) -> None:
    for name, kind in families.items():
        assert name.startswith("ocs_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|millis|minutes|kb|mb|percent)(_|$)", name), name


def test_the_dashboard_has_every_metric_and_no_other(families: dict[str, str]) -> None:
    parts = [
        f"{name}_{end}"
        for name, kind in families.items()
        if kind == "histogram"
        for end in ("bucket", "sum", "count")
    ]
    named = {name for expression in EXPRESSIONS for name in re.findall(r"\bocs_\w+", expression)}
    assert named <= {*families, *parts}
    shown = " ".join(EXPRESSIONS)
    assert [name for name in families if name not in shown] == []


def test_the_dashboard_can_be_imported() -> None:
    assert DASHBOARD["schemaVersion"] >= 38
    assert DASHBOARD["id"] is None
    kinds = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert kinds["datasource"] == "datasource"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_do_not_overlap() -> None:
    used: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        x, y, width, height = (panel["gridPos"][key] for key in "xywh")
        cells = {(column, row) for column in range(x, x + width) for row in range(y, y + height)}
        assert not cells & used, panel["title"]
        assert x + width <= 24
        used |= cells
