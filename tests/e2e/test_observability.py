"""A real server, watched: scraped, logging JSON, sending traces to a collector."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.serving import TINY, sdk
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

TRACE = "ab" * 16


class Collector:
    """Takes traces over OTLP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.add(self.path)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def ask(client: openai.OpenAI, **more: object) -> str:
    """Returns the request's id."""
    said: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a secret of mine"}],
        "max_tokens": 5,
    }
    said |= {"extra_body": more or {"ignore_eos": True}}
    said |= {"extra_headers": {"traceparent": f"00-{TRACE}-{'cd' * 8}-01"}}
    return str(client.chat.completions.with_raw_response.create(**said).headers["x-request-id"])


def test_a_server_is_watched_from_its_start_to_its_end() -> None:
    with Collector().running() as collector:
        options = (*TINY, "--log-format", "json", "--otel-endpoint", collector.url, "--api-key", "hunter2")
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

    assert collector.paths == {"/v1/traces"}
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    names = sorted(span.name for span in spans)
    assert names == ["POST /v1/chat/completions"] * 2 + ["decode", "prefill", "queue"]
    (root, _) = (span for span in spans if span.name.startswith("POST"))
    assert root.parent_span_id.hex() == "cd" * 8
    assert {s.parent_span_id for s in spans if not s.name.startswith("POST")} == {root.span_id}
