"""Metrics of requests, of the cache of answers, and of what keys use. They are counted when requests end."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.observe.ended import BOUNDS_S, AnswerUse, Distribution, EndedCall, EndedRequest


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
        self._requests = Counter(
            "ocs_answer_cache_requests",
            "Requests by what the cache of answers did for them: exact, semantic, miss or bypass (they want "
            "none of it, or each answer is drawn anew).",
            ("result",),
            registry=registry,
        )
        self._tokens = Counter(
            "ocs_answer_cache_output_tokens",
            "Output tokens that were told from it and not computed; ocs_output_tokens counts them too.",
            registry=registry,
        )
        self._kept = Counter(
            "ocs_answer_cache_stores", "Answers that this server has put into it.", registry=registry
        )
        self._entries = Gauge(
            "ocs_answer_cache_entries", "Answers in it when it was last written.", registry=registry
        )
        self._bytes = Gauge("ocs_answer_cache_bytes", "Their bytes.", registry=registry)

    def ended(self, use: AnswerUse, call: EndedCall | None) -> None:
        self._requests.labels(use.value).inc()
        if use.is_hit and call is not None:
            self._tokens.inc(call.figures.output_tokens)

    def kept(self) -> None:
        self._kept.inc()

    def held(self, entries: int, num_bytes: int) -> None:
        self._entries.set(entries)
        self._bytes.set(num_bytes)


_KEY_LABELS = ("key", "model")


class KeyMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "ocs_key_requests",
            "Ended calls and rows of batches by the name of their API key; answer: computed, or recalled "
            "from the cache of answers.",
            (*_KEY_LABELS, "answer"),
            registry=registry,
        )
        self._tokens = Counter(
            "ocs_key_tokens",
            "Their tokens; kind: input (cached ones included), cached, output, recalled_input or "
            "recalled_output.",
            (*_KEY_LABELS, "kind"),
            registry=registry,
        )
        self._cpu = Counter(
            "ocs_key_cpu_seconds",
            "CPU seconds of steps, shared among the keys of each step by their tokens.",
            _KEY_LABELS,
            registry=registry,
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
        if amounts.cpu_ms:
            self._cpu.labels(key, model).inc(amounts.cpu_ms / 1000)
