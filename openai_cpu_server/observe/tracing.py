"""OpenTelemetry traces: a span per request with its queue, prefill and decode.

Ended requests are traced from recorded times, which costs nothing before. OpenTelemetry (extra `otel`) is
imported only here, on demand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from openai_cpu_server import __version__
from openai_cpu_server.errors import MissingExtra, StartupError
from openai_cpu_server.observe.ended import EndedCall, EndedRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

_SERVICE = "openai-cpu-server"
_TRACES_PATH = "/v1/traces"
_EXPORT_TIMEOUT_S = 5
_SERVER_ERROR = 500


def open_tracing(endpoint: str) -> Tracing:
    """Send traces to this collector (OTLP over HTTP)."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtra("--otel-endpoint needs", "otel") from None
    if not endpoint.startswith(("http://", "https://")):
        raise StartupError("--otel-endpoint: expected http://HOST:PORT")
    exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=_EXPORT_TIMEOUT_S)
    return Tracing(BatchSpanProcessor(exporter))


def traces_url(endpoint: str) -> str:
    """Treat the address as the base of one URL per signal, as OpenTelemetry specifies."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


class Tracing:
    def __init__(self, processor: SpanProcessor) -> None:
        """`processor` receives the spans and is shut down with this object."""
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({SERVICE_VERSION: __version__})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # it has no configured name
            resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_SERVICE, __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._below = set_span_in_context
        self._server, self._error = SpanKind.SERVER, StatusCode.ERROR

    def close(self) -> None:
        """Send remaining spans, with a short timeout."""
        self._provider.shutdown()

    def ended(self, request: EndedRequest) -> None:
        if request.is_quiet:
            return
        epoch_s = time.time() - time.monotonic()
        parent = None
        if (trace := request.trace) is not None:
            parent = self._extract({"traceparent": trace.parent, "tracestate": trace.state})
        span = self._tracer.start_span(
            f"{request.method} {request.route}",
            context=parent,
            kind=self._server,
            attributes=dict(_of_request(request)),
            start_time=_ns(epoch_s + request.started_s),
        )
        if request.call is not None:
            below = self._below(span)
            for name, start_s, seconds, attributes in _phases(request.call):
                start_ns = _ns(epoch_s + start_s)
                phase = self._tracer.start_span(
                    name, context=below, attributes=attributes, start_time=start_ns
                )
                phase.end(_ns(epoch_s + start_s + seconds))
        if request.status >= _SERVER_ERROR:
            span.set_status(self._error, request.code)
        span.end(_ns(epoch_s + request.ended_s))


def _phases(call: EndedCall) -> Iterator[tuple[str, float, float, dict[str, AttributeValue]]]:
    """Starts are on the monotonic clock, lengths in seconds."""
    figures, start_s = call.figures, call.submitted_s
    queue_s, prefill_s, decode_s = (
        ms / 1000 for ms in (figures.queue_ms, figures.prefill_ms, figures.generation_ms)
    )
    yield ("queue", start_s, queue_s, {})
    if prefill_s or decode_s:
        tokens = {"ocs.prompt_tokens": figures.prompt_tokens, "ocs.cached_tokens": figures.cached_tokens}
        yield ("prefill", start_s + queue_s, prefill_s, {**tokens})
    if call.ttft_s is not None:
        start_s += queue_s + prefill_s
        yield ("decode", start_s, decode_s, {"ocs.output_tokens": figures.output_tokens})


def _of_request(request: EndedRequest) -> Iterator[tuple[str, AttributeValue]]:
    """Use OpenTelemetry's semantic conventions where they exist."""
    yield "http.request.method", request.method
    yield "http.route", request.route
    yield "http.response.status_code", request.status
    yield "ocs.request_id", request.id
    yield "ocs.origin", request.origin.value
    if request.code is not None:
        yield "error.type", request.code
    if request.answer is not None:
        yield "ocs.answer_cache", request.answer.value
    if request.call is not None:
        yield "ocs.priority", request.priority
        yield "gen_ai.usage.input_tokens", request.call.figures.prompt_tokens
        yield "gen_ai.usage.output_tokens", request.call.figures.output_tokens
        yield "gen_ai.response.finish_reasons", request.call.finish_reasons


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
