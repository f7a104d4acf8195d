"""Compute threads on cores of their own: the real llama.cpp in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here"),
]

_BEGIN = """
import json, os, sys, threading
from openai_cpu_server.kernels.library import put_in_front

put_in_front()  # verifies the kernels, so that its threads are not counted below

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Open, Span, Step
from openai_cpu_server.llama.backend import LlamaBackend

model, draft_model, threads, threads_batch = json.loads(sys.argv[1])
options = EngineOptions(
    model_path=model,
    draft_model_path=draft_model,
    kv_tokens=512,
    max_seqs=2,
    threads=threads,
    threads_batch=threads_batch,
)

def cores_of(thread):
    return sorted(os.sched_getaffinity(thread))

def cores_of_new_threads():
    ours = {str(thread.native_id) for thread in threading.enumerate()}
    return [cores_of(int(thread)) for thread in set(os.listdir("/proc/self/task")) - before - ours]

before = set(os.listdir("/proc/self/task"))
backend = LlamaBackend.load(options, lambda fraction: None)
"""
_ALL = """
for _ in range(20):
    backend.warm_up()
print(json.dumps([cores_of_new_threads(), cores_of(0)]))
"""
_FEWER = """
start, rounds = 0, []
for count in (threads, 1, threads):
    backend.threads.use(count)
    for _ in range(20):
        verbs = (Open(0, Sampling(seed=0), (300, 301, 302)),) if start == 0 else ()
        result = backend.execute(Step(verbs, (Span(0, start, (300 + start,), sample=True),)))
        start += 1
    waits = backend.threads.waits_s()
    placed = sorted(cores_of(t) for t in waits if t != threading.get_native_id())
    rounds.append((result.samples[0].token, placed, min(waits.values()) >= 0, len(waits)))
print(json.dumps([rounds, backend.threads.idle_s(), cores_of(0)]))
"""
_DRAFTING = """
from openai_cpu_server.llama.bindings import llama_cpp

draft, seen = backend._loaded.draft_model, set()

@llama_cpp.ggml_abort_callback
def watch(data):
    seen.add(tuple(cores_of(0)))
    return False

for _ in range(20):
    backend.warm_up()
llama_cpp.llama_set_abort_callback(draft._context.handle, watch, None)
backend.execute(Step((Open(0, Sampling(seed=0), tuple(range(300, 500))),)))
backend.execute(Step((), (Span(0, 0, tuple(range(300, 500)), sample=True, num_to_draft=8),)))
print(json.dumps([cores_of_new_threads(), sorted(seen)]))
"""
_END = "backend.close()"


def affinities(program: str, model: Path, threads: int, threads_batch: int) -> tuple[list[list[int]], list]:
    return msgspec.json.decode(run_program(program, model, threads, threads_batch))


def run_program(program: str, model: Path, threads: int, threads_batch: int) -> bytes:
    draft_model = str(model) if program is _DRAFTING else None
    arguments = msgspec.json.encode([str(model), draft_model, threads, threads_batch]).decode()
    command = [sys.executable, "-c", _BEGIN + program + _END, arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.slow
def test_fewer_or_more_threads_are_left_to_the_kernel(tiny: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for threads, threads_batch in ((1, 1), (len(cores) + 1, len(cores) + 1), (len(cores), len(cores) + 1)):
        workers, caller = affinities(_ALL, tiny, threads, threads_batch)
        assert len(workers) >= threads - 1
        assert all(found == cores for found in [*workers, caller])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no fewer")
def test_fewer_threads_compute_where_the_kernel_puts_them_and_all_have_cores_again(tiny: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    output = run_program(_FEWER, tiny, len(cores), len(cores))
    rounds, idle_s, caller = msgspec.json.decode(
        output, type=tuple[list[tuple[int, list[list[int]], bool, int]], float, list[int]]
    )
    placed = [places for _, places, _, _ in rounds]
    assert placed[0] == placed[2] == [[core] for core in cores[1:]]
    assert all(place == cores for place in placed[1])
    assert all(is_valid for _, _, is_valid, _ in rounds)
    assert (rounds[0][3], rounds[2][3]) == (len(cores), len(cores)), "each thread reports its wait"
    assert idle_s > 0
    assert caller == cores, "the caller is bound only while it computes"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nothing is bound on one core")
def test_a_draft_model_computes_on_the_same_cores(tiny: Path) -> None:
    """The draft model uses the threads of the model, and its caller stays on its core."""
    cores = sorted(os.sched_getaffinity(0))
    workers, caller = affinities(_DRAFTING, tiny, len(cores), len(cores))
    assert sorted(workers) == [[core] for core in cores[1:]]
    assert caller == [cores[:1]], "the caller is bound while the draft model computes"
