"""Metrics of the cache of answers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from openai_cpu_server.observe.ended import AnswerUse, EndedCall


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
