#!/usr/bin/env python3
"""Measures what the server costs: its output tokens/s against a bare llama_decode + sampler loop of the same
steps.

    .venv/bin/python scripts/overhead.py --model PATH [--clients 16] [--prompt-tokens 64] [--tokens 64]

Rounds alternate (bare, server, bare, server, ...) so that a noisy machine hits both; medians are compared.
The bare loop asks the scheduler for its steps beforehand, so both compute batches of the same shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import llama_cpp
import msgspec
from bench.servers import environment

from openai_cpu_server.config.folders import HUGE_PAGES, user_cache_dir
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import Sample, Span, Step, StepResult
from openai_cpu_server.engine.generating import step_options
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import Machine, ThreadBinding
from openai_cpu_server.llama.measure.calibrate import cost_curve
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import PriorityPolicy

SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
KV_TOKENS = 8192
OPTIONS = EngineOptions(model_path="", kv_tokens=KV_TOKENS, repack=False)
OUTPUTS = 128
_ENDING_BYTES = 4096
"""The last bytes of a stream, which contain its usage."""


@dataclass(frozen=True)
class Load:
    """Equal requests that all arrive at once."""

    clients: int
    prompt_tokens: int
    tokens: int

    @property
    def output_tokens(self) -> int:
        return self.clients * self.tokens


def main() -> None:
    arguments = _arguments()
    if not HUGE_PAGES.keys() & os.environ.keys():  # the engine has them from its start
        os.execve(sys.executable, sys.orig_argv, os.environ | HUGE_PAGES)
    load = Load(arguments.clients, arguments.prompt_tokens, arguments.tokens)
    steps = list(_steps(load, _cost(arguments.model)))
    bare, served = [], []
    cores = ThreadBinding(Machine().num_threads())  # one for all rounds: threads come into being once
    for number in range(arguments.rounds):
        with Bare(arguments.model, cores) as loop:
            bare.append(load.output_tokens / loop.run(steps))
        with _server(arguments.model, load) as port:
            asyncio.run(_serve_load(port, Load(load.clients, load.prompt_tokens, 4)))  # warm up
            served.append(load.output_tokens / asyncio.run(_serve_load(port, load)))
        print(f"round {number + 1}: bare {bare[-1]:.2f} tok/s, server {served[-1]:.2f} tok/s", flush=True)
    _report(load, len(steps), bare, served)


def _report(load: Load, num_steps: int, bare: Sequence[float], served: Sequence[float]) -> None:
    loop, server = statistics.median(bare), statistics.median(served)
    print(f"{load.clients} requests of {load.prompt_tokens} + {load.tokens} tokens, {num_steps} steps")
    print(f"bare llama_decode + sampler loop: {loop:8.2f} output tok/s")
    print(f"server, {load.clients} HTTP streams:          {server:8.2f} output tok/s")
    print(f"ratio: {server / loop:.3f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF (scripts/make_model.py --shape 1b)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _prompt(number: int, load: Load) -> list[int]:
    return [300 + (7 * number + i) % 500 for i in range(load.prompt_tokens)]


def _cost(model: Path) -> CostModel:
    """The server's cost model, from a process of its own: no thread may compute here before `Bare`."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return CostModel(pool.submit(_curve, str(model)).result())


def _curve(model: str) -> CostCurve:
    """The cost curve. It is measured once and kept where the server keeps it."""
    options = msgspec.structs.replace(OPTIONS, model_path=model)
    backend = LlamaBackend.load(options, lambda fraction: None)
    try:
        return cost_curve(backend, options, user_cache_dir() / "measured")
    finally:
        backend.close()


def _steps(load: Load, cost: CostModel) -> Iterator[Step]:
    """The steps that the server's scheduler computes for this load."""
    scheduler = Scheduler(
        limits=StepLimits(OPTIONS.max_seqs, OPTIONS.prefill_tokens, OUTPUTS),
        ledger=KVLedger(KV_TOKENS // 16),
        cache=SavedPrefixes(0),
        cost=cost,
        options=step_options(EngineOptions(model_path="")),
        policy=PriorityPolicy(),
    )
    for number in range(load.clients):
        prompt = tuple(_prompt(number, load))
        sampling = Sampling(seed=number)
        scheduler.sequences.submit(
            GenerationRequest(id=str(number), tokens=prompt, max_tokens=load.tokens, sampling=sampling)
        )
    while scheduler.has_work:
        step = scheduler.schedule()
        samples = {span.slot: Sample(500) for span in step.spans if span.sample}
        result = StepResult(samples=samples, padding=step.padding)
        for advance in scheduler.apply(step, result):
            if advance.sequence.remaining == 0:
                scheduler.sequences.finish(advance.sequence)
        if step.spans:
            yield step


class Bare:
    """The least work possible: one llama_decode for a step, one sampler chain for a sequence.

    It has as many threads as the server, bound to cores in the same way.
    """

    def __init__(self, model: Path, cores: ThreadBinding) -> None:
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
        """The seconds of all steps, after one that warms up."""
        self._step(steps[0])
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        start = time.perf_counter()
        for step in steps:
            self._step(step)
        return time.perf_counter() - start

    def _step(self, step: Step) -> None:
        n = 0
        for span in step.spans:
            for i, token in enumerate(span.tokens):
                token = self._next[span.slot] if len(span.tokens) == 1 else token
                self._put(n, token, span.start + i, span.slot, span.sample and i == len(span.tokens) - 1)
                n += 1
        for position in range(step.padding):
            self._put(n + position, 0, position, OPTIONS.max_seqs, False)
        self._batch.n_tokens = n + step.padding
        with self._cores.computing():
            code = llama_cpp.llama_decode(self._context, self._batch)
        assert code == 0, f"llama_decode returned {code}"
        self._sample(step.spans)
        if step.padding:
            memory = llama_cpp.llama_get_memory(self._context)
            llama_cpp.llama_memory_seq_rm(memory, OPTIONS.max_seqs, -1, -1)

    def _put(self, n: int, token: int, position: int, slot: int, output: bool) -> None:
        batch = self._batch
        batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, position, 1, output
        batch.seq_id[n][0] = slot

    def _sample(self, spans: Sequence[Span]) -> None:
        n = -1
        for span in spans:
            n += len(span.tokens)
            if span.sample:
                chain = self._chains[span.slot]
                self._next[span.slot] = llama_cpp.llama_sampler_sample(chain, self._context, n)

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
            llama_cpp.llama_sampler_init_top_k(int(SAMPLING["top_k"])),
            llama_cpp.llama_sampler_init_top_p(SAMPLING["top_p"], 1),
            llama_cpp.llama_sampler_init_temp(SAMPLING["temperature"]),
            llama_cpp.llama_sampler_init_dist(seed),
        ):
            llama_cpp.llama_sampler_chain_add(chain, sampler)
        return chain


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Discard llama.cpp's output while it loads."""


@contextmanager
def _server(model: Path, load: Load) -> Iterator[int]:
    """A server process. Yields its port."""
    command = [sys.executable, "-m", "openai_cpu_server", "serve", "--model", str(model), "--port", "0"]
    options = ["--ctx-size", str(KV_TOKENS), "--max-seqs", str(OPTIONS.max_seqs), "--repack", "off"]
    options += ["--cache-mb", "0", "--profile", "off", "--prefill-tokens", str(OPTIONS.prefill_tokens)]
    # With drafts, its steps would be others than the bare loop's.
    options += ["--speculation", "off", "--jobs-db", "none"]
    process = subprocess.Popen(command + options, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = None
        for line in process.stderr:
            if found := re.search(r"listening on http://[^:]+:(\d+)", line):
                port = int(found[1])
            if "ready" in line:
                break
        if port is None:
            raise SystemExit("the server did not start")
        yield port
    finally:
        process.terminate()
        process.wait()


async def _serve_load(port: int, load: Load) -> float:
    """The seconds until all streams have ended."""
    start = time.perf_counter()
    counts = await asyncio.gather(*(_stream(port, number, load) for number in range(load.clients)))
    assert set(counts) == {load.tokens}, f"tokens per request: {counts}"
    return time.perf_counter() - start


async def _stream(port: int, number: int, load: Load) -> int:
    """One streamed completion over a plain socket (a client library would cost more than the server)."""
    body = {
        "prompt": _prompt(number, load),
        "max_tokens": load.tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "seed": number,
        **SAMPLING,
    }
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(payload), payload)
    )
    ending = b""
    while data := await reader.read(2**16):  # a client that looks at every event costs as much as the server
        ending = (ending + data)[-_ENDING_BYTES:]
    found = re.search(rb'"completion_tokens":(\d+)', ending)
    tokens = int(found[1]) if found else 0
    writer.close()
    return tokens


if __name__ == "__main__":
    main()
