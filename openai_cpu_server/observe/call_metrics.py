"""Metrics of requests that generate, embed or score. They are counted when they end."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from openai_cpu_server.observe.distribution import BOUNDS_S
from openai_cpu_server.observe.ended import Ended, EndedCall
from openai_cpu_server.observe.histograms import DistributionHistogram

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

    def ended(self, request: Ended, call: EndedCall) -> None:
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
