"""Predicts tokens per second from step times that were measured on this machine, or not at all.

Without them there is no honest figure. What memory bandwidth allows is a bound that few machines come near:
with few cores, arithmetic decides, and what the kernels of a quantisation make of a CPU is to be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.cost import CostCurve, attended_pairs
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.loading import repacks
from openai_cpu_server.llama.measure.calibrate import CurveKey, cost_curve, known_curves
from openai_cpu_server.scheduler.cost_model import CostModel

_CONTEXT = 512
"""The number of tokens that each decoding sequence attends to."""
_SEQUENCES = (1, 2, 4, 8, 16, 32)


class Decode(msgspec.Struct, frozen=True):
    sequences: int
    tokens_per_second: float
    """The speed of all sequences together."""


class Speed(msgspec.Struct, frozen=True):
    threads: int
    threads_batch: int
    kv_type: str
    repack: bool
    flash_attention: bool
    kernels: dict[str, str | None]
    """By kernel of ours: its instruction set; None: it was off."""
    is_default: bool
    """Whether `serve` would use these options."""
    context: int
    """The number of tokens behind which each sequence decodes."""
    prompt_tokens_per_second: float
    """The speed of a prompt's first step."""
    decode: list[Decode]


class Measured(NamedTuple):
    key: CurveKey
    curve: CostCurve


def best_known(
    model: Path, cache_dir: Path, options: EngineOptions, header: GgufHeader, machine: Machine
) -> Measured | None:
    """The kept curve whose options are most like these; the newest if there are several."""
    known = [Measured(key, curve) for key, curve in known_curves(model, cache_dir)]

    def likeness(measured: Measured) -> int:
        wanted = _wanted(measured.key, options, header, machine)
        return sum(a == b for a, b in zip(_had(measured.key, header), wanted, strict=True))

    return max(known, key=likeness, default=None)


def measure(options: EngineOptions, cache_dir: Path, on_progress: Callable[[str, float], None]) -> Measured:
    """Load the model and time its steps, unless they are known. The result is kept for `serve`.

    `on_progress` hears what is done, and the progress, 0 to 1. Raises `StartupError`.
    """
    backend = LlamaBackend.load(options, lambda fraction: on_progress("loading", fraction))
    try:
        curve = cost_curve(
            backend, options, cache_dir, lambda fraction: on_progress("timing steps", fraction)
        )
        return Measured(CurveKey.of(backend.info, options), curve)
    finally:
        backend.close()


def predicted(measured: Measured, options: EngineOptions, header: GgufHeader, machine: Machine) -> Speed:
    key, curve = measured
    had = _had(key, header)
    prompt = curve.step_ms[-1][0]
    model = CostModel(curve)
    sizes = [n for n in _SEQUENCES if n <= min(key.max_seqs, key.max_step_tokens)]
    return Speed(
        *had,
        kernels=key.kernels,
        is_default=had == _wanted(key, options, header, machine),
        context=_CONTEXT,
        prompt_tokens_per_second=1000 * prompt / model.predict_ms(prompt, attended_pairs(0, prompt)),
        decode=[Decode(n, 1000 * n / _decode_ms(model, n)) for n in sizes],
    )


def _decode_ms(model: CostModel, sequences: int) -> float:
    return model.predict_ms(sequences, sequences * _CONTEXT)


_Options = tuple[int, int, str, bool, bool]
"""The threads for one token and for more, KV type, repacked weights, flash attention."""


def _had(key: CurveKey, header: GgufHeader) -> _Options:
    options = EngineOptions(model_path=str(header.path), repack=key.repack)
    repack = repacks(options, header, our_products=_has_our_products(key))
    return key.threads, key.threads_batch or key.threads, key.kv_type, repack, key.flash_attention


def _wanted(key: CurveKey, options: EngineOptions, header: GgufHeader, machine: Machine) -> _Options:
    """What `serve` takes, if the same kernels compute as when the key's curve was measured."""
    threads = options.threads or machine.num_threads()
    repack = repacks(options, header, our_products=_has_our_products(key))
    return threads, options.threads_batch or threads, options.kv_type, repack, options.flash_attention


def _has_our_products(key: CurveKey) -> bool:
    return key.kernels["products"] is not None
