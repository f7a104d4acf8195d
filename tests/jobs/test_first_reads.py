"""msgspec crashes the process if two threads decode a struct type for the first time at once."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import DEADLINE_S

_READS = """
import sys, threading
import msgspec
from openai_cpu_server.jobs.store.database import record_of

sys.setswitchinterval(1e-6)
fields = [(f"f{n}", dict[str, list[int]]) for n in range(25)]
row = {name: {"a": [1]} for name, _ in fields}
for n in range(200):
    kind = msgspec.defstruct(f"K{n}", [*fields, ("inner", msgspec.defstruct(f"I{n}", fields))])
    barrier = threading.Barrier(4)

    def read():
        barrier.wait()
        record_of(kind, {**row, "inner": row})

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_a_record_type_for_the_first_time_at_once() -> None:
    assert subprocess.run([sys.executable, "-c", _READS], timeout=DEADLINE_S).returncode == 0
