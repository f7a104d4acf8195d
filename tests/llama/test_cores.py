"""Compute threads on cores of their own: the real llama.cpp in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytestmark = [
    pytest.mark.native,
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here"),
]

_PROGRAM = """
import json, os, sys, threading
from openai_cpu_server.kernels.library import put_in_front

put_in_front()  # they are proved before, with threads of their own

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.backend import LlamaBackend

before = set(os.listdir("/proc/self/task"))
options = EngineOptions(
    model_path=sys.argv[1],
    kv_tokens=256,
    max_seqs=2,
    threads=int(sys.argv[2]),
    threads_batch=int(sys.argv[3]),
)
backend = LlamaBackend.load(options, lambda fraction: None)
for _ in range(20):
    backend.warm_up()
ours = {str(thread.native_id) for thread in threading.enumerate()}
new = set(os.listdir("/proc/self/task")) - before - ours
print(json.dumps([[sorted(os.sched_getaffinity(int(t))) for t in new], sorted(os.sched_getaffinity(0))]))
backend.close()
"""


_FEWER_PROGRAM = """
import json, os, sys, threading
from openai_cpu_server.kernels.library import put_in_front

put_in_front()

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import Open, Span, Step
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.llama.backend import LlamaBackend

threads = int(sys.argv[2])
options = EngineOptions(model_path=sys.argv[1], kv_tokens=256, max_seqs=2, threads=threads)
backend = LlamaBackend.load(options, lambda fraction: None)
start, told = 0, []
for count in (threads, 1, threads):
    backend.threads.use(count)
    for _ in range(20):
        opened = (Open(0, Sampling(seed=0), (300, 301, 302)),) if start == 0 else ()
        result = backend.execute(Step(opened, (Span(0, start, (300 + start,), sample=True),)))
        start += 1
    waits = backend.threads.waits_s()
    placed = sorted(sorted(os.sched_getaffinity(t)) for t in waits if t != threading.get_native_id())
    told.append((result.samples[0].token, placed, min(waits.values()) >= 0, len(waits)))
print(json.dumps([told, backend.threads.idle_s()]))
backend.close()
"""


_DRAFTING_PROGRAM = """
import json, os, sys, threading
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import Span
from openai_cpu_server.llama.cells.batch import TokenBatch
from openai_cpu_server.llama.draft_model import DraftRequest
from openai_cpu_server.llama.loading import load
from openai_cpu_server.llama.host import Machine

seen, is_over = set(), threading.Event()

def watch():
    while not is_over.wait(0.0002):
        seen.add(tuple(sorted(os.sched_getaffinity(os.getpid()))))

before = set(os.listdir("/proc/self/task"))
threads = int(sys.argv[2])
options = EngineOptions(
    model_path=sys.argv[1],
    draft_model_path=sys.argv[1],
    kv_tokens=512,
    max_seqs=2,
    threads=threads,
    threads_batch=threads,
)
loaded = load(options, lambda fraction: None, Machine())
batch = TokenBatch(1)
batch.fill([Span(slot=0, start=0, tokens=(300,), sample=True)])
loaded.context.decode(batch)
watcher = threading.Thread(target=watch)
watcher.start()
for _ in range(300):
    loaded.draft_model.draft([DraftRequest(0, range(300, 500), 8)])
    loaded.draft_model.forget(0)
    if len(seen) > 1:
        break
is_over.set()
watcher.join()
ours = {str(thread.native_id) for thread in (*threading.enumerate(), watcher)}
new = set(os.listdir("/proc/self/task")) - before - ours
print(json.dumps([[sorted(os.sched_getaffinity(int(t))) for t in new], sorted(seen)]))
loaded.draft_model.close()
loaded.context.close()
loaded.model.close()
"""


def affinities(model: Path, threads: int, threads_batch: int) -> tuple[list[list[int]], list[int]]:
    """Cores of the threads that llama.cpp has started, and of the thread that calls it."""
    return msgspec.json.decode(
        printed(_PROGRAM, model, threads, threads_batch), type=tuple[list[list[int]], list[int]]
    )


def printed(program: str, *arguments: object) -> bytes:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=True).stdout


def test_as_many_threads_as_cores_have_one_each(tiny: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    workers, caller = affinities(tiny, len(cores), len(cores))
    assert sorted(workers) == [[core] for core in cores[1:]]
    assert caller == cores, "bound while it computes only"


def test_fewer_or_more_threads_are_left_to_the_kernel(tiny: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for threads, threads_batch in ((1, 1), (len(cores) + 1, len(cores) + 1), (len(cores), len(cores) + 1)):
        workers, caller = affinities(tiny, threads, threads_batch)
        assert len(workers) >= threads - 1
        assert all(found == cores for found in [*workers, caller])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no fewer")
def test_fewer_threads_compute_where_the_kernel_puts_them_and_all_have_cores_again(tiny: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    output = printed(_FEWER_PROGRAM, tiny, len(cores))
    told, idle_s = msgspec.json.decode(
        output, type=tuple[list[tuple[int, list[list[int]], bool, int]], float]
    )
    placed = [places for _, places, _, _ in told]
    assert placed[0] == placed[2] == [[core] for core in cores[1:]]
    assert all(place == cores for place in placed[1])
    assert all(is_told for _, _, is_told, _ in told)
    assert (told[0][3], told[2][3]) == (len(cores), len(cores)), "all of them are watched"
    assert idle_s > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nothing is bound on one core")
def test_a_draft_model_computes_on_the_same_cores(tiny: Path) -> None:
    """It gets no threads of its own: those of the model serve it, and its caller keeps to its core too."""
    cores = sorted(os.sched_getaffinity(0))
    output = printed(_DRAFTING_PROGRAM, tiny, len(cores))
    workers, caller = msgspec.json.decode(output, type=tuple[list[list[int]], list[list[int]]])
    assert sorted(workers) == [[core] for core in cores[1:]]
    assert cores[:1] in caller, "while the draft model computed"
