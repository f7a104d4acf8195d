"""Metrics of engine steps, and of requests, cached answers and keys when requests end."""

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
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from openai_cpu_server import __version__
from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import (
    BOUNDS_S,
    AnswerUse,
    Distribution,
    EndedCall,
    EndedRequest,
    RequestOrigin,
)


class DistributionHistogram(Collector):
    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._series: dict[tuple[str, ...], Distribution] = {}

    def merge(self, labels: tuple[str, ...], distribution: Distribution) -> None:
        self._series.setdefault(labels, Distribution()).merge(distribution)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, distribution in self._series.items():
            buckets = [(str(bound), float(count)) for bound, count in distribution.cumulative()]
            family.add_metric(labels, [*buckets, ("+Inf", float(distribution.num))], distribution.sum_s)
        yield family


_LABELS = ("route", "priority")


class CallMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, said: str, *more: str) -> Counter:
            return Counter(f"ocs_{name}", said, ("priority", *more), registry=registry)

        def histogram(name: str, said: str) -> Histogram:
            return Histogram(f"ocs_{name}_seconds", said, _LABELS, registry=registry, buckets=BOUNDS_S)

        self._sequences = counter(
            "sequences", "Choices by how they ended: stop, length, cancelled or unfinished.", "reason"
        )
        self._prompt = counter("prompt_tokens", "Tokens of the prompts of ended requests.")
        self._cached = counter(
            "cached_tokens",
            "Prompt tokens of ended requests that were not computed, because another request had.",
        )
        self._audio = counter("audio_seconds", "Seconds of sound in the prompts of ended requests.")
        self._output = counter("output_tokens", "Output tokens of ended requests.")
        self._adapters = Counter(
            "ocs_adapter_tokens",
            "Tokens of ended requests with a LoRA adapter, by MODEL:NAME; kind: prompt or output.",
            ("adapter", "kind"),
            registry=registry,
        )
        self._inputs = counter("embedded_inputs", "Inputs of ended requests that were embedded or scored.")
        self._input_tokens = counter("embedded_tokens", "Tokens of these inputs.")
        self._queue = histogram("queue", "Seconds from submission to the first step.")
        self._ttft = histogram("time_to_first_token", "Seconds from arrival to the first token.")
        self._total = histogram(
            "request", "Seconds from arrival to the end, of requests that were submitted."
        )
        self._gaps = DistributionHistogram(
            "ocs_inter_token_seconds",
            "Seconds between tokens of a sequence as they leave the engine, one observation a token.",
            _LABELS,
        )
        registry.register(self._gaps)

    def ended(self, request: EndedRequest, call: EndedCall) -> None:
        priority, labels = request.priority, (request.route, request.priority)
        for reason in call.finish_reasons:
            self._sequences.labels(priority, reason).inc()
        if call.inputs is None:
            self._prompt.labels(priority).inc(call.figures.prompt_tokens)
            self._cached.labels(priority).inc(call.figures.cached_tokens)
            self._output.labels(priority).inc(call.figures.output_tokens)
            self._audio.labels(priority).inc(call.figures.audio_s)
        elif call.inputs:
            self._inputs.labels(priority).inc(call.inputs)
            self._input_tokens.labels(priority).inc(call.figures.prompt_tokens)
        if call.adapter is not None:
            self._adapters.labels(call.adapter, "prompt").inc(call.figures.prompt_tokens)
            self._adapters.labels(call.adapter, "output").inc(call.figures.output_tokens)
        self._queue.labels(*labels).observe(call.figures.queue_ms / 1000)
        self._total.labels(*labels).observe(request.seconds)
        if call.ttft_s is not None:
            self._ttft.labels(*labels).observe(call.ttft_s)
        self._gaps.merge(labels, call.gaps)


class AnswerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._requests = counter(
            "ocs_answer_cache_requests",
            "Requests by what the cache of answers did for them: exact, semantic, miss or bypass (they want "
            "none of it, or each answer is drawn anew).",
            ("result",),
        )
        self._tokens = counter(
            "ocs_answer_cache_output_tokens",
            "Output tokens that were told from it and not computed; ocs_output_tokens counts them too.",
        )
        self._kept = counter("ocs_answer_cache_stores", "Answers that this server has put into it.")
        self._entries = gauge("ocs_answer_cache_entries", "Answers in it when it was last written.")
        self._bytes = gauge("ocs_answer_cache_bytes", "Their bytes.")

    def ended(self, use: AnswerUse, call: EndedCall | None) -> None:
        self._requests.labels(use.value).inc()
        if use.is_hit and call is not None:
            self._tokens.inc(call.figures.output_tokens)

    def answer_kept(self) -> None:
        self._kept.inc()

    def answers_held(self, entries: int, num_bytes: int) -> None:
        self._entries.set(entries)
        self._bytes.set(num_bytes)


class McpMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "ocs_mcp_calls",
            "Calls of tools of MCP servers that this server has made, by server (url: one that a request has "
            "named) and outcome: completed or failed.",
            ("server", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "ocs_mcp_call_seconds",
            "Seconds that they took.",
            ("server",),
            registry=registry,
            buckets=BOUNDS_S,
        )
        self._rounds = Histogram(
            "ocs_mcp_rounds",
            "Generations of responses that could call such tools.",
            registry=registry,
            buckets=(1, 2, 3, 4, 6, 8, 11, 16, 32),
        )

    def mcp_called(self, server: str, *, failed: bool, seconds: float) -> None:
        self._calls.labels(server, "failed" if failed else "completed").inc()
        self._seconds.labels(server).observe(seconds)

    def mcp_rounds(self, rounds: int) -> None:
        self._rounds.observe(rounds)


class KeptAmounts(NamedTuple):
    """Sizes of resumable streams, running or finished."""

    running: int
    ended: int
    num_bytes: int


class StreamMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._kept = Gauge(
            "ocs_kept_streams",
            "Streams that can be taken up again, by state: running or ended.",
            ("state",),
            registry=registry,
        )
        self._bytes = Gauge("ocs_kept_stream_bytes", "Bytes of their events in memory.", registry=registry)
        self._taken_up = Counter(
            "ocs_streams_taken_up", "How often a client has taken up one of them.", registry=registry
        )

    def show(self, amounts: Callable[[], KeptAmounts]) -> None:
        """Read the amounts from this function at each scrape."""
        self._kept.labels("running").set_function(lambda: amounts().running)
        self._kept.labels("ended").set_function(lambda: amounts().ended)
        self._bytes.set_function(lambda: amounts().num_bytes)

    def taken_up(self) -> None:
        self._taken_up.inc()


_KEY_LABELS = ("key", "model")


class KeyMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._requests = counter(
            "ocs_key_requests",
            "Ended calls and rows of batches by the name of their API key; answer: computed, or recalled "
            "from the cache of answers.",
            (*_KEY_LABELS, "answer"),
        )
        self._tokens = counter(
            "ocs_key_tokens",
            "Their tokens; kind: input (cached ones included), cached, output, recalled_input or "
            "recalled_output.",
            (*_KEY_LABELS, "kind"),
        )
        self._cpu = counter(
            "ocs_key_cpu_seconds",
            "CPU seconds of steps, shared among the keys of each step by their tokens.",
            _KEY_LABELS,
        )

        self._audio = counter(
            "ocs_key_audio_seconds", "Seconds of sound in the prompts of their computed calls.", _KEY_LABELS
        )

    def used(self, key: str, model: str, amounts: Amounts) -> None:
        answers = {"computed": amounts.requests, "recalled": amounts.recalled_requests}
        kinds = {
            "input": amounts.input_tokens,
            "cached": amounts.cached_tokens,
            "output": amounts.output_tokens,
            "recalled_input": amounts.recalled_input_tokens,
            "recalled_output": amounts.recalled_output_tokens,
        }
        for answer, count in answers.items():
            if count:
                self._requests.labels(key, model, answer).inc(count)
        for kind, count in kinds.items():
            if count:
                self._tokens.labels(key, model, kind).inc(count)
        if amounts.audio_seconds:
            self._audio.labels(key, model).inc(amounts.audio_seconds)
        if amounts.cpu_ms:
            self._cpu.labels(key, model).inc(amounts.cpu_ms / 1000)


_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


class StepMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, said: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"ocs_step_{name}", said, registry=registry, buckets=buckets)

        def counter(name: str, said: str) -> Counter:
            return Counter(f"ocs_{name}", said, registry=registry)

        self._seconds = histogram("seconds", "Seconds that steps took.", _STEP_S)
        self._predicted = histogram(
            "predicted_seconds", "Seconds that the cost model had predicted for them.", _STEP_S
        )
        self._ratio = histogram(
            "real_to_predicted_ratio", "The real time of steps divided by the predicted one.", _RATIOS
        )
        self._tokens = histogram("tokens", "Tokens that steps computed, padding not counted.", _TOKENS)
        self._sequences = histogram("sequences", "Sequences that had a part in steps.", _TOKENS)
        self._computed = counter("computed_tokens", "Tokens that steps computed, of prompts and outputs.")
        self._padding = counter("padding_tokens", "Throw-away tokens that made steps faster.")
        self._encoding_s = Counter(
            "ocs_encoding_seconds",
            "Time in which media were encoded, by kind: picture or sound.",
            ["kind"],
            registry=registry,
        )
        self._encoded = Counter(
            "ocs_encoded_media",
            "Pictures and sounds, or parts of large ones, that were encoded, by kind.",
            ["kind"],
            registry=registry,
        )
        self._sampled = counter("sampled_tokens", "Output tokens, counted when they are sampled.")
        self._forced = counter("forced_tokens", "Output tokens that a constraint left no alternative to.")
        self._drafted = counter(
            "drafted_tokens",
            "Tokens computed ahead, in the hope that they are what comes; part of the computed ones.",
        )
        self._accepted = counter(
            "accepted_draft_tokens", "Draft tokens that came; part of the sampled and forced ones."
        )
        self._preemptions = counter("preemptions", "Times that a sequence gave up its cells for another.")
        self._interruptions = counter("interruptions", "Steps thrown away for an interactive newcomer.")

    def step_done(self, figures: StepFigures) -> None:
        """Count a step. The time of an interrupted step does not count, because it computed nothing."""
        if figures.preemptions:
            self._preemptions.inc(figures.preemptions)
        if figures.forced:
            self._forced.inc(figures.forced)
        if figures.encoded or figures.encoding_ms:
            self._encoding_s.labels(figures.encodes).inc(figures.encoding_ms / 1000)
            self._encoded.labels(figures.encodes).inc(figures.encoded)
        if figures.is_interrupted:
            self._interruptions.inc()
        elif figures.tokens:
            self._computed_step(figures)

    def _computed_step(self, figures: StepFigures) -> None:
        self._seconds.observe(figures.elapsed_ms / 1000)
        self._predicted.observe(figures.predicted_ms / 1000)
        self._ratio.observe(figures.elapsed_ms / max(figures.predicted_ms, 1e-3))
        self._tokens.observe(figures.tokens)
        self._sequences.observe(figures.sequences)
        self._computed.inc(figures.tokens)
        self._padding.inc(figures.padding)
        self._sampled.inc(figures.sampled)
        self._drafted.inc(figures.drafted)
        self._accepted.inc(figures.accepted)


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Counters of finished requests, steps, and model loads. One thread calls it."""

    def __init__(self, registry: CollectorRegistry, *, model: str) -> None:
        """`model`: served name of the default model."""
        self._registry = registry
        counter = partial(Counter, registry=registry)
        self._requests = counter(
            "ocs_requests",
            "Requests that have ended; status 499: the client left. Origin: http, batch, websocket or "
            "background.",
            ("origin", "method", "route", "priority", "status"),
        )
        self._refusals = counter(
            "ocs_refusals",
            "Requests that ended with an error, by the code of the error object, else its type.",
            ("code",),
        )
        self._routed = counter(
            "ocs_routed_requests",
            "Requests that a router has sent to this model, by why: rule, classified, similar, share, "
            "otherwise, unavailable (what decides), sure, unsure, cut, stream, too_long or failed.",
            ("router", "model", "why"),
        )
        self._calls = CallMetrics(registry)
        self.answers = AnswerMetrics(registry)
        self._rows = counter(
            "ocs_batch_rows",
            "Rows of batches by outcome: answered, failed, or put_off (to be run again later).",
            ("outcome",),
        )
        self.rows_running = Gauge(
            "ocs_batch_rows_running", "Rows of batches that run or wait in the queue.", registry=registry
        )
        self._deaths = counter(
            "ocs_engine_restarts",
            "Deaths of the engine process after its first start, by cause: a signal's name, hang, ...",
            ("cause",),
        )
        self._reader_deaths = counter(
            "ocs_reader_restarts",
            "Deaths of the processes that read texts, by cause: of what they read, or killed by somebody.",
            ("cause",),
        )
        self._reader_work = Gauge(
            "ocs_reader_work",
            "Clients' pieces of work by kind (quick, program or media) and state (waiting or running).",
            ("kind", "state"),
            registry=registry,
        )
        self.reader_share = Gauge(
            "ocs_reader_share_seconds",
            "Seconds of computing that a piece of work may take in a reader before it is refused.",
            registry=registry,
        )
        self._loads = counter(
            "ocs_model_loads",
            "Loads of models on demand, by outcome: loaded or failed.",
            ("model", "outcome"),
        )
        self._load_seconds = Histogram(
            "ocs_model_load_seconds",
            "Seconds from the start of a process to a loaded model, of models that are loaded on demand.",
            ("model",),
            registry=registry,
            buckets=BOUNDS_S,
        )
        self._unloads = counter(
            "ocs_model_unloads",
            "Models that were unloaded, by why: idle, room (for another), asked, or replaced.",
            ("model", "why"),
        )
        self.steps = StepMetrics(registry)
        self.keys = KeyMetrics(registry)
        self.mcp = McpMetrics(registry)
        self.streams = StreamMetrics(registry)
        ProcessCollector(namespace="ocs", registry=registry)
        Info("ocs_build", "What runs here: always 1.", registry=registry).info(
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
        """Return the text of `/metrics`, of type `CONTENT_TYPE`."""
        return text_of(_WithoutCreated(self._registry))

    def ended(self, request: EndedRequest) -> None:
        self._requests.labels(
            request.origin.value, request.method, request.route, request.priority, request.status
        ).inc()
        if request.code is not None:
            self._refusals.labels(request.code).inc()
        if (routed := request.routed) is not None:
            self._routed.labels(routed.router, routed.model, routed.reason).inc()
        if request.origin is RequestOrigin.BATCH:
            self._rows.labels("answered" if request.status < 300 else "failed").inc()
        if request.answer is not None:
            self.answers.ended(request.answer, request.call)
        if request.call is not None:
            self._calls.ended(request, request.call)

    def row_put_off(self) -> None:
        self._rows.labels("put_off").inc()

    def engine_died(self, cause: str) -> None:
        self._deaths.labels(cause).inc()

    def reader_died(self, cause: str) -> None:
        """Count a death. Any thread may call this."""
        self._reader_deaths.labels(cause).inc()

    def watch_readers(self, load: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """`load`: number of waiting and of running pieces, by kind of work."""
        for kind in load():
            for place, state in enumerate(("waiting", "running")):
                self._reader_work.labels(kind, state).set_function(partial(_of_kind, load, kind, place))

    def model_loaded(self, model: str, seconds: float) -> None:
        self._loads.labels(model, "loaded").inc()
        self._load_seconds.labels(model).observe(seconds)

    def model_not_loaded(self, model: str) -> None:
        self._loads.labels(model, "failed").inc()

    def model_unloaded(self, model: str, why: str) -> None:
        self._unloads.labels(model, why).inc()


def _of_kind(load: Callable[[], Mapping[str, tuple[int, int]]], kind: str, place: int) -> float:
    return load()[kind][place]


def text_of(collector: Collector) -> bytes:
    """Return the collector's metrics as text of type `CONTENT_TYPE`."""
    return generate_latest(collector)


class _WithoutCreated(Collector):
    """Registry without `_created` series, which the text format would show as gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
