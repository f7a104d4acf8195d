"""Nothing grows with use."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.vocabulary import Vocabulary

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
PROMPT = tuple(range(300, 330))


def use_slots(backend: LlamaBackend, times: int) -> None:
    for turn in range(times):
        slot = turn % backend.info.max_seqs
        opened = Open(slot, ALL, PROMPT, (), 5)
        backend.execute(Step(verbs=(opened,), spans=(Span(slot, 0, PROMPT, True, PROMPT[1:9]),)))
        backend.execute(Step(verbs=(Close(slot),)))


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def test_opening_and_closing_slots(backend: LlamaBackend) -> None:
    use_slots(backend, 50)
    files, memory = psutil.Process().num_fds(), resident()
    use_slots(backend, 200)
    assert psutil.Process().num_fds() <= files
    assert resident() - memory < 2**20


def test_loading_and_closing(tiny: Path) -> None:
    options = EngineOptions(model_path=str(tiny), kv_tokens=4096, max_seqs=8)

    def once() -> None:
        with Vocabulary.open(tiny) as vocabulary:
            vocabulary.encode("text", add_special=True, parse_special=True)
        backend = LlamaBackend.load(options, lambda fraction: None)
        use_slots(backend, 2)
        backend.close()
        backend.close()

    for _ in range(3):
        once()
    files, threads, memory = psutil.Process().num_fds(), psutil.Process().num_threads(), resident()
    for _ in range(10):
        once()
    assert psutil.Process().num_fds() <= files
    assert psutil.Process().num_threads() == threads
    assert resident() - memory < 8 * 2**20
