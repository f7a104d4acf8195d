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
ours = {str(thread.native_id) for thread in threading.enumerate()}
new = set(os.listdir("/proc/self/task")) - before - ours
print(json.dumps([[sorted(os.sched_getaffinity(int(t))) for t in new], sorted(os.sched_getaffinity(0))]))
backend.close()
"""


def affinities(model: Path, threads: int, threads_batch: int) -> tuple[list[list[int]], list[int]]:
    """Cores of the threads that llama.cpp has started, and of the thread that calls it."""
    command = [sys.executable, "-c", _PROGRAM, str(model), str(threads), str(threads_batch)]
    done = subprocess.run(command, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=tuple[list[list[int]], list[int]])


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
