"""Process that measures one setting. Its memory is freed with it, and a crash only excludes the setting."""

from __future__ import annotations

import sys
from contextlib import closing

import msgspec

from openai_cpu_server.cli.tune import search
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.measure.probe import Probe

_REPEATS = 3
_SHORT_MS = 3000.0
"""Compute faster long prompts twice, because of noise."""
_RESERVE = 512
"""Cells for the timed steps, beside the contexts."""


def main() -> None:
    trial = msgspec.json.decode(sys.stdin.buffer.read(), type=search.TuneTrial)
    answer: search.TuneTimings | search.TuneFailure
    try:
        loaded = closing(LlamaBackend.load(trial.options, lambda fraction: None))
        with loaded as backend, Probe(backend) as probe:
            answer = _timings(trial, backend.info, probe)
    except StartupError as error:
        answer = search.TuneFailure(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _timings(trial: search.TuneTrial, info: ModelInfo, probe: Probe) -> search.TuneTimings:
    """Slot 0 holds the long prompt, the last one gets the short one, the others decode."""
    context = min(trial.context, info.kv_tokens - _RESERVE)
    prefill_ms = _fill(probe, context, trial.options.prefill_tokens)
    if prefill_ms * context < _SHORT_MS:
        probe.close()
        prefill_ms = min(prefill_ms, _fill(probe, context, trial.options.prefill_tokens))
    timings: dict[str, float] = {}
    if search.WorkloadPart.PREFILL in trial.parts:
        short_ms = min(probe.compute({info.max_seqs - 1: search.SHORT_PROMPT}) for _ in range(_REPEATS))
        timings |= {"prefill_ms": prefill_ms, "short_prompt_ms": short_ms}
    if search.WorkloadPart.DECODE_ONE in trial.parts:
        timings["decode_one_ms"] = min(probe.compute({0: 1}) for _ in range(4 * _REPEATS))
    if search.WorkloadPart.DECODE_MANY in trial.parts:
        timings["decode_few_ms"] = _decode(probe, info, search.FEW)
        timings["decode_many_ms"] = _decode(probe, info, search.MANY)
    return search.TuneTimings(context=context, **timings)


def _fill(probe: Probe, context: int, chunk: int) -> float:
    total_ms = 0.0
    while (left := context - probe.held(0)) > 0:
        total_ms += probe.compute({0: min(chunk, left)})
    return total_ms / context


def _decode(probe: Probe, info: ModelInfo, num_sequences: int) -> float:
    """Return milliseconds per sequence. Sequences have separate cells if the pool has room."""
    room = (info.kv_tokens - _RESERVE) // probe.held(0)
    slots = range(min(num_sequences, info.max_seqs - 1, room))
    new = [slot for slot in slots if not probe.held(slot)]
    if new:
        probe.copy(0, new)
    step_ms = min(probe.compute(dict.fromkeys(slots, 1)) for _ in range(_REPEATS))
    return step_ms / len(slots)


if __name__ == "__main__":
    main()
