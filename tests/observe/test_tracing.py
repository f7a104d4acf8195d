"""Spans that OpenTelemetry's in-memory exporter receives."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from openai_cpu_server.errors import StartupError
from openai_cpu_server.observe.tracing import Tracing, open_tracing, traces_url
from tests.api.talking import MESSAGES, chat
from tests.api.watching import observed_server
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.anyio

TRACE, SPAN = 0xAB, 0xCD
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"
CHAT = "/v1/chat/completions"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    return Tracing(SimpleSpanProcessor(exporter))


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_and_its_phases(
    exporter: InMemorySpanExporter, tracing: Tracing, stream: bool
) -> None:
    async with observed_server("step_s=0.005", tracing=tracing) as server:
        server.http.headers["traceparent"] = PARENT
        await chat(server.http, ignore_eos=True, stream=stream)
        await server.http.get("/metrics")
    spans = by_name(exporter)
    assert set(spans) == {f"POST {CHAT}", "queue", "prefill", "decode"}
    root = spans[f"POST {CHAT}"]
    assert (root.parent.trace_id, root.parent.span_id, root.parent.is_remote) == (TRACE, SPAN, True)
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["gen_ai.usage.output_tokens"] == 8
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    for phase in phases:
        assert (phase.parent.span_id, phase.context.trace_id) == (root.context.span_id, TRACE)
        assert root.start_time <= phase.start_time <= phase.end_time
    ends = [*(phase.end_time for phase in phases[:2])]
    starts = [*(phase.start_time for phase in phases[1:])]
    assert all(abs(end - start) < 1e6 for end, start in zip(ends, starts, strict=True))
    assert phases[2].end_time <= root.end_time + 1e6
    assert dict(phases[1].attributes or {}) == {"ocs.prompt_tokens": 5, "ocs.cached_tokens": 0}
    assert dict(phases[2].attributes or {}) == {"ocs.output_tokens": 8}
    assert phases[2].end_time > phases[2].start_time


async def test_a_refusal_is_one_span_that_begins_a_trace(
    exporter: InMemorySpanExporter, tracing: Tracing
) -> None:
    async with observed_server(tracing=tracing) as server:
        await chat(server.http, temperature=9)
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert dict(span.attributes or {})["error.type"] == "decimal_above_max_value"
    assert span.status.status_code is StatusCode.UNSET  # an error of the client, not of the server


async def test_a_row_of_a_batch_has_spans(exporter: InMemorySpanExporter, tracing: Tracing) -> None:
    async with observed_server(tracing=tracing) as server:
        await server.run_row(CHAT, json.dumps({"messages": MESSAGES, "max_tokens": 4}).encode(), "")
    root = by_name(exporter)[f"POST {CHAT}"]
    assert (root.attributes or {})["ocs.origin"] == "batch"


def test_the_collectors_address() -> None:
    for endpoint in ("http://h:4318", "http://h:4318/", "http://h:4318/v1/traces"):
        assert traces_url(endpoint) == "http://h:4318/v1/traces"
    with pytest.raises(StartupError, match="--otel-endpoint: expected http"):
        open_tracing("h:4318")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace.export"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StartupError, match=r"^--otel-endpoint needs: .* -m pip install 'opentelemetry-"):
        open_tracing("http://h:4318")


def test_opentelemetry_is_not_imported_when_tracing_is_off() -> None:
    code = (
        "import openai_cpu_server.server.run, sys; print([m for m in sys.modules if m.startswith('opentel')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert done.stdout.strip() == "[]"
