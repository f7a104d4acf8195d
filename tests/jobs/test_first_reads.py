"""msgspec crashes a process in which two threads are the first to read a kind of struct."""

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
    together = threading.Barrier(4)

    def read():
        together.wait()
        record_of(kind, {**row, "inner": row})

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_be_the_first_to_read_a_kind_of_record() -> None:
    assert subprocess.run([sys.executable, "-c", _READS], timeout=DEADLINE_S).returncode == 0
