"""Observability of a real server: JSON logs, and traces that are sent to a collector."""

from __future__ import annotations

import json
import signal
from http.server import BaseHTTPRequestHandler
from typing import Any

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.serving import TINY, answering_http, sdk
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

TRACE = "ab" * 16
SPANS, PATHS = list[Span](), set[str]()


class Collector(BaseHTTPRequestHandler):
    """Collector of traces over OTLP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        PATHS.add(self.path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            SPANS.extend(span for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the access log out of the test's output."""


def ask(client: openai.OpenAI, **more: object) -> str:
    """Return the request's id."""
    messages = [{"role": "user", "content": "a secret of mine"}]
    params: Any = {"model": "tiny", "messages": messages, "max_tokens": 5}
    params |= {"extra_body": more or {"ignore_eos": True}}
    params |= {"extra_headers": {"traceparent": f"00-{TRACE}-{'cd' * 8}-01"}}
    return str(client.chat.completions.with_raw_response.create(**params).headers["x-request-id"])


def test_logs_and_traces_cover_a_server_from_start_to_end() -> None:
    with answering_http(Collector) as url:
        options = (*TINY, "--log-format", "json", "--otel-endpoint", url, "--api-key", "hunter2")
        server = ServerProcess(*options)
        try:
            server.url = "http://127.0.0.1:" + server.wait_for(r"listening on http://127\.0\.0\.1:(\d+)")
            server.wait_for(r'"message": "(ready): ')
            with sdk(server, "hunter2") as client:
                request_id = ask(client)
                with pytest.raises(openai.BadRequestError):
                    ask(client, colour="red")
            refused = server.get("/metrics")
            assert refused.status_code == 401
        finally:
            code = server.stop(signal.SIGTERM)
    assert code == 0

    entries = [json.loads(line) for line in server.lines]
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in entries)
    good, bad = (entry for entry in entries if entry["logger"].endswith(".requests"))
    assert (good["id"], good["status"], good["output_tokens"]) == (request_id, 200, 5)
    assert (good["finish_reason"], good["priority"], good["trace_id"]) == ("length", "interactive", TRACE)
    assert good["total_ms"] >= good["ttft_ms"] > 0
    assert bad["status"] == 400
    log = "".join(server.lines)
    assert "secret" not in log
    assert "hunter2" not in log

    assert {"/v1/traces"} == PATHS
    spans = [span for span in SPANS if span.trace_id.hex() == TRACE]
    names = sorted(span.name for span in spans)
    assert names == ["POST /v1/chat/completions"] * 2 + ["decode", "prefill", "queue"]
    (root, _) = (span for span in spans if span.name.startswith("POST"))
    assert root.parent_span_id.hex() == "cd" * 8
    assert {s.parent_span_id for s in spans if not s.name.startswith("POST")} == {root.span_id}
