"""Metrics of what API keys use. Keys go by their names; all that have none are one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from openai_cpu_server.contract.usage import Amounts

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
