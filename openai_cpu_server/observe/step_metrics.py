"""Metrics of the engine's steps. A step takes milliseconds, counting it some microseconds."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from openai_cpu_server.contract.messages import StepFigures

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
        """Count a step. An interrupted step computed nothing, so its time does not count."""
        if figures.preemptions:
            self._preemptions.inc(figures.preemptions)
        if figures.forced:
            self._forced.inc(figures.forced)
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
