"""Metrics of engine steps and of ended requests."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from openai_cpu_server import __version__
from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import BOUNDS_S, Distribution, EndedCall, EndedRequest, RequestOrigin

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

disable_created_metrics()  # type: ignore[no-untyped-call]  # the text format would show these series as gauges
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
_ROUNDS = (1, 2, 3, 4, 6, 8, 11, 16, 32)


class DistributionHistogram(Collector):
    def __init__(
        self, name: str, documentation: str, labels: tuple[str, ...], *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._series: dict[tuple[str, ...], Distribution] = {}
        registry.register(self)

    def merge(self, labels: tuple[str, ...], distribution: Distribution) -> None:
        self._series.setdefault(labels, Distribution()).merge(distribution)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, distribution in self._series.items():
            buckets = [(str(bound), float(count)) for bound, count in distribution.cumulative()]
            family.add_metric(labels, [*buckets, ("+Inf", float(distribution.num))], distribution.sum_s)
        yield family


class _Metric(NamedTuple):
    kind: type[Counter | Gauge | Histogram | DistributionHistogram]
    documentation: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = BOUNDS_S


_ROUTE_LABELS = ("route", "priority")
_KEY_LABELS = ("key", "model")
_METRICS = {
    "requests": _Metric(
        Counter,
        "Requests that have ended; status 499: the client disconnected. Origin: http, batch, websocket "
        "or background.",
        ("origin", "method", "route", "priority", "status"),
    ),
    "refusals": _Metric(
        Counter,
        "Requests that ended with an error, by the code of the error object, else its type.",
        ("code",),
    ),
    "routed_requests": _Metric(
        Counter,
        "Requests that a router has sent to this model, by reason (why): rule, classified, similar, "
        "share, otherwise, unavailable (the deciding model), sure, unsure, cut, stream, too_long or "
        "failed.",
        ("router", "model", "why"),
    ),
    "sequences": _Metric(
        Counter, "Choices by how they ended: stop, length, cancelled or unfinished.", ("priority", "reason")
    ),
    "prompt_tokens": _Metric(Counter, "Tokens of the prompts of ended requests.", ("priority",)),
    "cached_tokens": _Metric(
        Counter,
        "Prompt tokens of ended requests that were not computed, with those of answers from a cache.",
        ("priority",),
    ),
    "audio_seconds": _Metric(Counter, "Seconds of sound in the prompts of ended requests.", ("priority",)),
    "output_tokens": _Metric(Counter, "Output tokens of ended requests.", ("priority",)),
    "adapter_tokens": _Metric(
        Counter,
        "Tokens of ended requests with a LoRA adapter, by MODEL:NAME; kind: prompt or output.",
        ("adapter", "kind"),
    ),
    "embedded_inputs": _Metric(
        Counter, "Inputs of ended requests that were embedded or scored.", ("priority",)
    ),
    "embedded_tokens": _Metric(
        Counter, "Tokens of ended requests that were embedded or scored.", ("priority",)
    ),
    "queue_seconds": _Metric(Histogram, "Seconds from submission to the first step.", _ROUTE_LABELS),
    "time_to_first_token_seconds": _Metric(
        Histogram, "Seconds from arrival to the first token.", _ROUTE_LABELS
    ),
    "request_seconds": _Metric(
        Histogram, "Seconds from arrival to the end, of requests that were submitted.", _ROUTE_LABELS
    ),
    "inter_token_seconds": _Metric(
        DistributionHistogram,
        "Seconds between tokens of a sequence as they leave the engine, one observation a token.",
        _ROUTE_LABELS,
    ),
    "answer_cache_requests": _Metric(
        Counter,
        "Requests by the result of the cache of answers: exact, semantic, miss or bypass (switched off "
        "by the request, or the answer is random).",
        ("result",),
    ),
    "answer_cache_output_tokens": _Metric(
        Counter,
        "Output tokens from the cache of answers, which were not computed; ocs_output_tokens_total "
        "counts them too.",
    ),
    "answer_cache_stores": _Metric(Counter, "Answers that this server has stored in the cache of answers."),
    "answer_cache_entries": _Metric(Gauge, "Answers in the cache of answers when it was last written."),
    "answer_cache_bytes": _Metric(Gauge, "Bytes of the cache of answers."),
    "batch_rows": _Metric(
        Counter,
        "Rows of batches by outcome: answered, failed, or put_off (to be run again later).",
        ("outcome",),
    ),
    "batch_rows_running": _Metric(Gauge, "Rows of batches that run or wait in the queue."),
    "engine_restarts": _Metric(
        Counter,
        "Deaths of the engine process after its first start, by cause: a signal's name, hang, ...",
        ("cause",),
    ),
    "reader_restarts": _Metric(
        Counter,
        "Deaths of reader processes, by cause: their input, or a signal from outside.",
        ("cause",),
    ),
    "reader_work": _Metric(
        Gauge,
        "Clients' pieces of work by kind (quick, program, media or document) and state (waiting or running).",
        ("kind", "state"),
    ),
    "reader_share_seconds": _Metric(
        Gauge, "CPU seconds that a piece of work may take in a reader before it is refused."
    ),
    "model_loads": _Metric(
        Counter, "Loads of models on demand, by outcome: loaded or failed.", ("model", "outcome")
    ),
    "model_load_seconds": _Metric(
        Histogram,
        "Seconds from the start of a process to a loaded model, of models that are loaded on demand.",
        ("model",),
    ),
    "model_unloads": _Metric(
        Counter,
        "Models that were unloaded, by reason (why): idle, room (for another model), asked (by an "
        "administrator), or replaced.",
        ("model", "why"),
    ),
    "step_seconds": _Metric(Histogram, "Seconds that steps took.", buckets=_STEP_S),
    "step_predicted_seconds": _Metric(
        Histogram, "Seconds that the cost model had predicted for them.", buckets=_STEP_S
    ),
    "step_real_to_predicted_ratio": _Metric(
        Histogram, "The real time of steps divided by the predicted one.", buckets=_RATIOS
    ),
    "step_tokens": _Metric(Histogram, "Tokens that steps computed, padding not counted.", buckets=_TOKENS),
    "step_sequences": _Metric(Histogram, "Sequences of a step.", buckets=_TOKENS),
    "computed_tokens": _Metric(Counter, "Tokens that steps computed, of prompts and outputs."),
    "padding_tokens": _Metric(Counter, "Discarded tokens that made steps faster."),
    "encoding_seconds": _Metric(
        Counter, "Time in which media were encoded, by kind: picture or sound.", ("kind",)
    ),
    "encoded_media": _Metric(
        Counter, "Pictures and sounds, or parts of large ones, that were encoded, by kind.", ("kind",)
    ),
    "sampled_tokens": _Metric(Counter, "Output tokens, counted when they are sampled."),
    "forced_tokens": _Metric(Counter, "Output tokens that were the only choice of a constraint."),
    "drafted_tokens": _Metric(Counter, "Draft tokens that steps verified; part of the computed tokens."),
    "accepted_draft_tokens": _Metric(
        Counter, "Draft tokens that were accepted; part of the sampled and forced tokens."
    ),
    "preemptions": _Metric(Counter, "Times that a sequence gave up its KV cells for another."),
    "interruptions": _Metric(Counter, "Steps discarded for a new interactive request."),
    "key_requests": _Metric(
        Counter,
        "Ended calls and batch rows by the name of their API key; answer: computed, or recalled from "
        "the cache of answers.",
        (*_KEY_LABELS, "answer"),
    ),
    "key_tokens": _Metric(
        Counter,
        "Tokens of ended calls by key; kind: input (including cached), cached, output, recalled_input "
        "or recalled_output.",
        (*_KEY_LABELS, "kind"),
    ),
    "key_cpu_seconds": _Metric(
        Counter, "CPU seconds of steps, shared among the keys of each step by their tokens.", _KEY_LABELS
    ),
    "key_audio_seconds": _Metric(
        Counter, "Seconds of sound in the prompts of computed calls by key.", _KEY_LABELS
    ),
    "mcp_calls": _Metric(
        Counter,
        "Calls of tools of MCP servers, by server (url: one that a request named) and outcome: "
        "completed or failed.",
        ("server", "outcome"),
    ),
    "mcp_call_seconds": _Metric(Histogram, "Seconds that calls of tools of MCP servers took.", ("server",)),
    "mcp_rounds": _Metric(
        Histogram, "Generations of responses that could call tools of MCP servers.", buckets=_ROUNDS
    ),
    "kept_streams": _Metric(Gauge, "Resumable streams, by state: running or ended.", ("state",)),
    "kept_stream_bytes": _Metric(Gauge, "Bytes of the stored events of resumable streams."),
    "streams_taken_up": _Metric(Counter, "Times that a client resumed a stream."),
}
"""All metrics but gauges, by name without `ocs_`, in the page's order."""


class StreamAmounts(NamedTuple):
    running: int
    ended: int
    num_bytes: int


class Metrics:
    """Counters and histograms, for one thread."""

    def __init__(self, registry: CollectorRegistry, *, model: str) -> None:
        """`model`: name of the default model."""
        self._registry = registry
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, (kind, documentation, labels, buckets) in _METRICS.items():
            texts = (f"ocs_{name}", documentation, labels)
            if kind is Counter:
                self._counters[name] = Counter(*texts, registry=registry)
            elif kind is Gauge:
                self._gauges[name] = Gauge(*texts, registry=registry)
            elif kind is Histogram:
                self._histograms[name] = Histogram(*texts, registry=registry, buckets=buckets)
            else:
                self._gaps = DistributionHistogram(*texts, registry=registry)
        self.rows_running = self._gauges["batch_rows_running"]
        ProcessCollector(namespace="ocs", registry=registry)
        Info("ocs_build", "Build information; always 1.", registry=registry).info(
            {
                "version": __version__,
                "python": platform.python_version(),
                "llama_cpp_python": version("llama-cpp-python"),
                "model": model,
            }
        )

    def add(self, collector: Collector) -> None:
        self._registry.register(collector)

    def page(self) -> bytes:
        """Return `/metrics` of type `CONTENT_TYPE`."""
        return metrics_text(self._registry)

    def count(self, name: str, *labels: object, amount: float = 1.0) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    # -- requests -----------------------------------------------------------------------------------------

    def ended(self, request: EndedRequest) -> None:
        self.count(
            "requests", request.origin.value, request.method, request.route, request.priority, request.status
        )
        if request.code is not None:
            self.count("refusals", request.code)
        if (routed := request.routed) is not None:
            self.count("routed_requests", routed.router, routed.model, routed.reason)
        if request.origin is RequestOrigin.BATCH:
            self.count("batch_rows", "answered" if request.status < 300 else "failed")
        if request.answer is not None:
            self.count("answer_cache_requests", request.answer.value)
            if request.answer.is_hit and request.call is not None:
                self.count("answer_cache_output_tokens", amount=request.call.figures.output_tokens)
        if request.call is not None:
            self._call_ended(request, request.call)

    def _call_ended(self, request: EndedRequest, call: EndedCall) -> None:
        figures, priority, labels = call.figures, request.priority, (request.route, request.priority)
        for reason in call.finish_reasons:
            self.count("sequences", priority, reason)
        if call.inputs is None:
            self.count("prompt_tokens", priority, amount=figures.prompt_tokens)
            self.count("cached_tokens", priority, amount=figures.cached_tokens)
            self.count("output_tokens", priority, amount=figures.output_tokens)
            self.count("audio_seconds", priority, amount=figures.audio_s)
        elif call.inputs:
            self.count("embedded_inputs", priority, amount=call.inputs)
            self.count("embedded_tokens", priority, amount=figures.prompt_tokens)
        if call.adapter is not None:
            self.count("adapter_tokens", call.adapter, "prompt", amount=figures.prompt_tokens)
            self.count("adapter_tokens", call.adapter, "output", amount=figures.output_tokens)
        self._observe("queue_seconds", figures.queue_ms / 1000, *labels)
        self._observe("request_seconds", request.seconds, *labels)
        if call.ttft_s is not None:
            self._observe("time_to_first_token_seconds", call.ttft_s, *labels)
        self._gaps.merge(labels, call.gaps)

    def key_used(self, key: str, model: str, amounts: Amounts) -> None:
        uses = (
            ("key_requests", ("computed",), amounts.requests),
            ("key_requests", ("recalled",), amounts.recalled_requests),
            ("key_tokens", ("input",), amounts.input_tokens),
            ("key_tokens", ("cached",), amounts.cached_tokens),
            ("key_tokens", ("output",), amounts.output_tokens),
            ("key_tokens", ("recalled_input",), amounts.recalled_input_tokens),
            ("key_tokens", ("recalled_output",), amounts.recalled_output_tokens),
            ("key_audio_seconds", (), amounts.audio_seconds),
            ("key_cpu_seconds", (), amounts.cpu_ms / 1000),
        )
        for name, labels, amount in uses:
            if amount:
                self.count(name, key, model, *labels, amount=amount)

    def answer_stored(self) -> None:
        self.count("answer_cache_stores")

    def answers_held(self, entries: int, num_bytes: int) -> None:
        self._gauges["answer_cache_entries"].set(entries)
        self._gauges["answer_cache_bytes"].set(num_bytes)

    def mcp_called(self, server: str, *, failed: bool, seconds: float) -> None:
        self.count("mcp_calls", server, "failed" if failed else "completed")
        self._observe("mcp_call_seconds", seconds, server)

    def mcp_rounds(self, rounds: int) -> None:
        self._observe("mcp_rounds", rounds)

    def watch_streams(self, amounts: Callable[[], StreamAmounts]) -> None:
        streams = self._gauges["kept_streams"]
        streams.labels("running").set_function(lambda: amounts().running)
        streams.labels("ended").set_function(lambda: amounts().ended)
        self._gauges["kept_stream_bytes"].set_function(lambda: amounts().num_bytes)

    # -- engines and readers ------------------------------------------------------------------------------

    def step_done(self, figures: StepFigures) -> None:
        """Ignore the time of an interrupted step, which computed nothing."""
        if figures.preemptions:
            self.count("preemptions", amount=figures.preemptions)
        if figures.forced:
            self.count("forced_tokens", amount=figures.forced)
        if figures.encoded or figures.encoding_ms:
            self.count("encoding_seconds", figures.encodes, amount=figures.encoding_ms / 1000)
            self.count("encoded_media", figures.encodes, amount=figures.encoded)
        if figures.is_interrupted:
            self.count("interruptions")
        elif figures.tokens:
            self._observe("step_seconds", figures.elapsed_ms / 1000)
            self._observe("step_predicted_seconds", figures.predicted_ms / 1000)
            self._observe(
                "step_real_to_predicted_ratio", figures.elapsed_ms / max(figures.predicted_ms, 1e-3)
            )
            self._observe("step_tokens", figures.tokens)
            self._observe("step_sequences", figures.sequences)
            self.count("computed_tokens", amount=figures.tokens)
            self.count("padding_tokens", amount=figures.padding)
            self.count("sampled_tokens", amount=figures.sampled)
            self.count("drafted_tokens", amount=figures.drafted)
            self.count("accepted_draft_tokens", amount=figures.accepted)

    def reader_died(self, cause: str) -> None:
        """Any thread may call this."""
        self.count("reader_restarts", cause)

    def watch_readers(self, load: Callable[[], Mapping[str, tuple[int, int]]], share_s: float) -> None:
        """`load`: numbers of waiting and running pieces by kind of work. `share_s`: CPU limit of a piece."""

        def pieces(kind: str, place: int) -> float:
            return load()[kind][place]

        self._gauges["reader_share_seconds"].set(share_s)
        for kind in load():
            for place, state in enumerate(("waiting", "running")):
                self._gauges["reader_work"].labels(kind, state).set_function(partial(pieces, kind, place))

    def model_loaded(self, model: str, seconds: float) -> None:
        self.count("model_loads", model, "loaded")
        self._observe("model_load_seconds", seconds, model)

    def model_not_loaded(self, model: str) -> None:
        self.count("model_loads", model, "failed")

    def model_unloaded(self, model: str, why: str) -> None:
        self.count("model_unloads", model, why)


def metrics_text(collector: Collector) -> bytes:
    """Return text of type `CONTENT_TYPE`."""
    return generate_latest(collector)
