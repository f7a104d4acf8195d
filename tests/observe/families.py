"""The metrics of a server in Prometheus' text format."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from openai_cpu_server.observe.gauges import EngineGauges
from openai_cpu_server.observe.telemetry import Telemetry
from tests.api.serving import new_engine


def families() -> dict[str, str]:
    """Return the type of each metric by name."""
    telemetry = Telemetry.new(model="m")
    telemetry.metrics.add(EngineGauges(lambda: [("m", new_engine())]))
    page = telemetry.metrics.page().decode()
    assert list(text_string_to_metric_families(page))
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
