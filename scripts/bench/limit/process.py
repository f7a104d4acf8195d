"""The bare loop's process: it reads a `Job` on stdin and writes an `Answer`.

    cd scripts && python -m bench.limit.process

It takes as many threads as our server does, and binds them to cores in the same way.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack

import llama_cpp
import msgspec

from bench.limit.shapes import Prices, Shape, latencies, prefix_sizes, shapes
from bench.limit.work import Answer, Job, LoopRun, Trial, Work
from openai_cpu_server.llama.host.cores import Cores
from openai_cpu_server.llama.host.machine import Machine

_CELLS_STEP = 256
_FIRST_TOKEN, _NUM_TOKENS = 300, 700
"""Any ids will do, because nobody reads the output."""


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    llama_cpp.llama_log_set(_silent, None)
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = job.repack
    model = llama_cpp.llama_model_load_from_file(job.model.encode(), params)
    if not model:
        raise SystemExit(f"cannot load {job.model}")
    cores = Cores(Machine().num_threads())  # one for all: threads come into being once
    step_ms = _time_steps(model, job, cores) if job.sizes else job.step_ms
    runs = tuple(_run(model, trial, Prices(step_ms), cores) for trial in job.trials)
    sys.stdout.buffer.write(msgspec.json.encode(Answer(step_ms=step_ms, runs=runs)))
    llama_cpp.llama_model_free(model)


def _time_steps(model: object, job: Job, cores: Cores) -> tuple[tuple[int, float], ...]:
    """The best times of the repeats, without context."""
    most = max(job.sizes)
    with Loop(model, cores, batch=most, sequences=1, cells=most, unified=True) as loop:
        loop.time_step(most)
        return tuple((n, min(loop.time_step(n) for _ in range(job.repeats))) for n in job.sizes)


def _run(model: object, trial: Trial, prices: Prices, cores: Cores) -> LoopRun:
    work, policy = trial.work, trial.policy
    batch = max(policy.size, work.clients, prices.largest)
    with Loop(
        model,
        cores,
        batch=batch,
        sequences=work.clients,
        cells=_cells(work) + batch if policy.unified else max(work.longest, batch),
        unified=policy.unified,
    ) as loop:
        planned = list(shapes(work, policy, prices))
        loop.time_step(max(shape.num_tokens for shape in planned))  # the first is slow, as nobody's later is
        start = time.perf_counter()
        loop.read_prefix(prefix_sizes(work, prices))
        if work.is_warm:
            start = time.perf_counter()
        begun_s = time.perf_counter() - start
        times_ms = [loop.compute(shape, work.shared) for shape in planned]
        seconds = time.perf_counter() - start
    first, gaps = latencies(planned, [ms / 1000 for ms in times_ms], begun_s=begun_s)
    return LoopRun(
        seconds=seconds,
        ttft_s=tuple(first),
        gaps_s=tuple(gaps),
        decode_ms=_decode_ms(planned, times_ms, work.clients),
        requests=len(work.requests),
        output_tokens=work.output_tokens,
    )


def _decode_ms(planned: Iterable[Shape], times_ms: Iterable[float], clients: int) -> float | None:
    pairs = zip(planned, times_ms, strict=True)
    found = [ms for shape, ms in pairs if shape.is_decoding and len(shape.parts) == clients]
    return statistics.median(found) if found else None


def _cells(work: Work) -> int:
    return work.shared + work.clients * (work.longest - work.shared)


class Loop:
    """A context of its own. Lanes 0 ..
    sequences-1 are followed by one for the shared prefix and one for padding."""

    def __init__(
        self, model: object, cores: Cores, *, batch: int, sequences: int, cells: int, unified: bool
    ) -> None:
        """`cells` are those of the pool, or of each lane."""
        self._prefix, self._padding = sequences, sequences + 1
        lanes = sequences + 2
        cells = -(-cells // _CELLS_STEP) * _CELLS_STEP
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = cells if unified else lanes * cells
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = lanes
        params.n_threads = params.n_threads_batch = Machine().num_threads()
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = unified
        params.no_perf = True
        with ExitStack() as undo:
            self._context = llama_cpp.llama_init_from_model(model, params)
            if not self._context:
                raise SystemExit(f"no context of {params.n_ctx} cells and {lanes} sequences")
            undo.callback(llama_cpp.llama_free, self._context)
            self._batch = llama_cpp.llama_batch_init(batch, 0, 1)
            undo.callback(llama_cpp.llama_batch_free, self._batch)
            self._undo = undo.pop_all()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._cores = cores

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def time_step(self, num_tokens: int) -> float:
        """Milliseconds of a step without context, whose cells are freed again."""
        self._clear_batch()
        self._add(self._padding, 0, num_tokens, wants_last=True)
        start = time.perf_counter()
        self._decode()
        elapsed_ms = 1000 * (time.perf_counter() - start)
        llama_cpp.llama_memory_seq_rm(self._memory, self._padding, -1, -1)
        return elapsed_ms

    def read_prefix(self, sizes: Iterable[int]) -> None:
        position = 0
        for size in sizes:
            self._clear_batch()
            self._add(self._prefix, position, size, wants_last=False)
            self._decode()
            position += size

    def compute(self, shape: Shape, shared: int) -> float:
        """Compute all steps; returns milliseconds."""
        start = time.perf_counter()
        if shared:
            for lane in shape.begins:
                llama_cpp.llama_memory_seq_cp(self._memory, self._prefix, lane, 0, shared)
        self._clear_batch()
        for part in shape.parts:
            self._add(part.lane, part.start, part.tokens, wants_last=part.samples)
        if shape.padding:
            self._add(self._padding, 0, shape.padding, wants_last=False)
        self._decode()
        for lane in (*shape.ends, self._padding) if shape.padding else shape.ends:
            llama_cpp.llama_memory_seq_rm(self._memory, lane, -1, -1)
        return 1000 * (time.perf_counter() - start)

    def _clear_batch(self) -> None:
        self._batch.n_tokens = 0

    def _add(self, lane: int, start: int, tokens: int, *, wants_last: bool) -> None:
        batch, first = self._batch, self._batch.n_tokens
        for i in range(tokens):
            n = first + i
            batch.token[n] = _FIRST_TOKEN + (31 * lane + 7 * (start + i)) % _NUM_TOKENS
            batch.pos[n], batch.n_seq_id[n], batch.logits[n] = start + i, 1, False
            batch.seq_id[n][0] = lane
        batch.n_tokens = first + tokens
        batch.logits[first + tokens - 1] = wants_last

    def _decode(self) -> None:
        with self._cores.computing():
            code = llama_cpp.llama_decode(self._context, self._batch)
            llama_cpp.llama_synchronize(self._context)
        if code != 0:
            raise SystemExit(f"llama_decode returned {code} for {self._batch.n_tokens} tokens")


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Discard llama.cpp's output while it loads."""


if __name__ == "__main__":
    main()
