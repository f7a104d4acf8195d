"""*overhead*: our server's output tokens/s against a bare llama_decode + sampler loop of the same steps.

Rounds alternate (bare, server, bare, server, ...) so that a noisy machine affects both; medians are compared.
The bare loop asks the scheduler for its steps beforehand, so both compute batches of the same shapes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import llama_cpp
import msgspec
from bench.asking import Ask
from bench.models import gguf
from bench.servers import Variant, ours, running
from bench.workloads.batches import run_batch
from simulation.fleet import new_scheduler

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS, Sample, Step, StepResult
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import ComputeThreads, Machine
from openai_cpu_server.llama.measure.calibrate import cost_curve
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes

KV_TOKENS = 8192
OPTIONS = EngineOptions(model_path="", kv_tokens=KV_TOKENS, repack=False)
OUTPUTS = 128
_SERVER_OPTIONS = (
    *("--ctx-size", str(KV_TOKENS), "--max-seqs", str(OPTIONS.max_seqs)),
    *("--prefill-tokens", str(OPTIONS.prefill_tokens), "--repack", "off", "--cache-mb", "0"),
    *("--speculation", "off"),  # with drafts, its steps would be others than the bare loop's
)


@dataclass(frozen=True)
class Load:
    clients: int
    prompt_tokens: int
    tokens: int

    def prompt(self, number: int) -> tuple[int, ...]:
        return tuple(300 + (7 * number + i) % 500 for i in range(self.prompt_tokens))

    def asks(self, tokens: int) -> list[Ask]:
        return [Ask(prompt=self.prompt(n), max_tokens=tokens, seed=n) for n in range(self.clients)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=gguf, required=True, help="GGUF (scripts/make_model.py --shape 1b)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> None:
    load = Load(options.clients, options.prompt_tokens, options.tokens)
    # In a process of its own, because no thread may compute here before `Bare`.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        steps = list(_steps(load, pool.submit(_curve, str(options.model)).result()))
    bare, served = [], []
    cores = ComputeThreads(Machine().num_threads())  # shared by all rounds, so threads are created once
    for number in range(options.rounds):
        with Bare(options.model, cores) as loop:
            bare.append(load.clients * load.tokens / loop.run(steps))
        with running(ours(Variant.WHOLE, options.model, *_SERVER_OPTIONS), []) as server:
            run_batch(server, load.asks(4), load.clients)  # warm up
            served.append(run_batch(server, load.asks(load.tokens), load.clients).output_tokens_per_s)
        print(f"round {number + 1}: bare {bare[-1]:.2f} tok/s, server {served[-1]:.2f} tok/s", flush=True)
    one, other = statistics.median(bare), statistics.median(served)
    print(f"{load.clients} requests of {load.prompt_tokens} + {load.tokens} tokens, {len(steps)} steps")
    print(f"bare llama_decode + sampler loop: {one:8.2f} output tok/s")
    print(f"server, {load.clients} HTTP streams:          {other:8.2f} output tok/s")
    print(f"ratio: {other / one:.3f}")


def _curve(model: str) -> CostCurve:
    options = msgspec.structs.replace(OPTIONS, model_path=model)
    with contextlib.closing(LlamaBackend.load(options, lambda fraction: None)) as backend:
        return cost_curve(backend, options, user_cache_dir() / "measured")


def _steps(load: Load, curve: CostCurve) -> Iterator[Step]:
    ledger, cache = KVLedger(KV_TOKENS // POOL_BLOCK_TOKENS), SavedPrefixes(0)
    scheduler = new_scheduler(
        num_slots=OPTIONS.max_seqs, ledger=ledger, cache=cache, curve=curve, outputs=OUTPUTS
    )
    for number in range(load.clients):
        prompt, sampling = load.prompt(number), Sampling(seed=number)
        scheduler.sequences.submit(
            GenerationRequest(id=str(number), tokens=prompt, max_tokens=load.tokens, sampling=sampling)
        )
    while scheduler.has_work:
        step = scheduler.schedule()
        samples = {span.slot: Sample(500) for span in step.spans if span.sample}
        for advance in scheduler.apply(step, StepResult(samples=samples, padding=step.padding)):
            if advance.sequence.remaining == 0:
                scheduler.sequences.finish(advance.sequence)
        if step.spans:
            yield step


class Bare:
    """The least work possible: one llama_decode for a step, one sampler chain for a sequence. It has as
    many threads as the server, bound to cores in the same way."""

    def __init__(self, model: Path, cores: ComputeThreads) -> None:
        self._cores = cores
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = False
        llama_cpp.llama_log_set(_silent, None)
        self._model = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
        self._context = llama_cpp.llama_init_from_model(self._model, self._context_params())
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        self._chains = [self._chain(seed) for seed in range(OPTIONS.max_seqs)]
        self._next = [0] * OPTIONS.max_seqs

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        for chain in self._chains:
            llama_cpp.llama_sampler_free(chain)
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def run(self, steps: Sequence[Step]) -> float:
        self._step(steps[0])
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        start = time.perf_counter()
        for step in steps:
            self._step(step)
        return time.perf_counter() - start

    def _step(self, step: Step) -> None:
        batch, n = self._batch, 0

        def put(token: int, position: int, slot: int, output: bool) -> None:
            nonlocal n
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, position, 1, output
            batch.seq_id[n][0] = slot
            n += 1

        for span in step.spans:
            for i, token in enumerate(span.tokens):
                token = self._next[span.slot] if len(span.tokens) == 1 else token
                put(token, span.start + i, span.slot, span.sample and i == len(span.tokens) - 1)
        for position in range(step.padding):
            put(0, position, OPTIONS.max_seqs, False)
        batch.n_tokens = n
        with self._cores.computing():
            code = llama_cpp.llama_decode(self._context, batch)
        assert code == 0, f"llama_decode returned {code}"
        row = -1
        for span in step.spans:
            row += len(span.tokens)
            if span.sample:
                chain = self._chains[span.slot]
                self._next[span.slot] = llama_cpp.llama_sampler_sample(chain, self._context, row)
        if step.padding:
            memory = llama_cpp.llama_get_memory(self._context)
            llama_cpp.llama_memory_seq_rm(memory, OPTIONS.max_seqs, -1, -1)

    def _context_params(self) -> llama_cpp.llama_context_params:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = KV_TOKENS
        params.n_batch = params.n_ubatch = OPTIONS.prefill_tokens
        params.n_seq_max = OPTIONS.max_seqs + 1
        params.n_threads = params.n_threads_batch = Machine().num_threads()
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = True
        params.no_perf = True
        return params

    def _chain(self, seed: int) -> ctypes.c_void_p:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for sampler in (
            llama_cpp.llama_sampler_init_top_k(40),
            llama_cpp.llama_sampler_init_top_p(0.95, 1),
            llama_cpp.llama_sampler_init_temp(0.8),
            llama_cpp.llama_sampler_init_dist(seed),
        ):
            llama_cpp.llama_sampler_chain_add(chain, sampler)
        return chain


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Discard llama.cpp's output while it loads."""
