"""Nothing grows with use."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pytest

from openai_cpu_server.contract.request import Constraint, Sampling
from openai_cpu_server.contract.step import Close, Drop, Open, Restore, Save, SavedBlock, Span, Step
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import do, holding, loaded
from tests.structured.making import gbnf_to_lark
from tests.waiting import wait_until

ALL = Sampling(
    seed=1,
    top_p=0.9,
    top_k=40,
    min_p=0.01,
    typical_p=0.9,
    repeat_penalty=1.1,
    presence_penalty=0.1,
    logit_bias={5: 1.0},
)
PROMPT = tuple(range(300, 310))


def use_slots(backend: LlamaBackend, times: int, constraint: Constraint | None = None) -> None:
    for turn in range(times):
        slot = turn % backend.info.max_seqs
        opened = Open(slot, ALL, PROMPT, (), 5, constraint)
        backend.execute(Step(verbs=(opened,), spans=(Span(slot, 0, PROMPT, True, PROMPT[1:9]),)))
        backend.execute(Step(verbs=(Close(slot),)))


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def threads() -> set[int]:
    """The system's numbers of them; no two threads of these tests have the same."""
    return {thread.id for thread in psutil.Process().threads()}


BRACKETS = Constraint(grammar=gbnf_to_lark('root ::= "[" [a-z]+ "]"'), opening=(5,), triggers=("x", "["))


@pytest.mark.parametrize("constraint", [None, BRACKETS], ids=["free", "constrained"])
def test_opening_and_closing_slots(backend: LlamaBackend, constraint: Constraint | None) -> None:
    use_slots(backend, 50, constraint)
    files, memory = psutil.Process().num_fds(), resident()
    use_slots(backend, 100, constraint)
    assert psutil.Process().num_fds() <= files
    assert resident() - memory < 2**20


def test_saving_and_dropping(backend: LlamaBackend) -> None:

    def once(times: int) -> None:
        starts = range(0, 2048, 64)
        with holding(backend, 0, (300,) * 2048):
            for number in range(times):
                do(backend, *(Save(0, start, start + 64, 32 * number + start // 64) for start in starts))
        held = resident()
        do(backend, *(Drop(number) for number in range(32 * times)))
        return held

    once(2)
    memory = resident()
    held = [once(50) for _ in range(2)]
    assert min(held) - memory > 64 * 2**20 < 2 * (held[0] - memory)
    assert resident() - memory < 72 * 2**20
    assert max(held) - held[0] < 8 * 2**20


def test_writing_and_mapping_the_prefix_cache(backend: LlamaBackend, tmp_path: Path) -> None:
    path = str(tmp_path / "prefixes.kv")
    block = SavedBlock(1, None, "", (300,) * 64)

    def once() -> None:
        with holding(backend, 0, block.tokens):
            do(backend, Save(0, 0, 64, 1))
        backend.export_cache(path, [block])
        do(backend, Drop(1))
        assert backend.import_cache(path) == (block,)
        with holding(backend, 0):
            do(backend, Restore(1, 0, 0, 64))
        do(backend, Drop(1))

    once()
    process = psutil.Process()
    files, maps = process.num_fds(), len(process.memory_maps(grouped=False))
    for _ in range(20):
        once()
    assert process.num_fds() <= files
    assert len(process.memory_maps(grouped=False)) - maps < 5


def test_loading_and_closing(tiny: Path) -> None:
    def once() -> None:
        with Vocabulary.open(tiny) as vocabulary:
            vocabulary.encode("text", add_special=True, parse_special=True)
        with loaded(tiny, kv_tokens=4096, max_seqs=8, threads=1) as backend:
            use_slots(backend, 2)
            backend.close()

    for _ in range(3):
        once()
    files, running, memory = psutil.Process().num_fds(), threads(), resident()
    for _ in range(5):
        once()
    assert psutil.Process().num_fds() <= files
    wait_until(lambda: threads() <= running)  # the system takes a while to remove one that was joined
    assert resident() - memory < 8 * 2**20
