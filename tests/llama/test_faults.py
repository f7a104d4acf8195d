"""What goes wrong with one sequence of a step is the end of that sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.contract.request import Constraint, Sampling
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.grammar.constrained import ConstrainedOutput
from openai_cpu_server.llama.sampling.sampler import BadLogits
from tests.fakes import Panic
from tests.llama.driver import GREEDY, loaded, sampled
from tests.llama.odd_models import poisoned
from tests.structured.making import gbnf_to_lark

POISON = 77
GOOD, BAD = (5, 6, 7), (5, POISON, 7)


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return poisoned(tiny, tmp_path_factory.mktemp("poisoned") / "model.gguf", token=POISON)


@pytest.fixture(scope="module")
def backend(model: Path) -> Iterator[LlamaBackend]:
    with loaded(model) as backend:
        yield backend


def rest(backend: LlamaBackend, first: int) -> list[int]:
    """Its first token, and four more of slot 0, which is closed then."""
    tokens = [first]
    for position in range(len(GOOD), len(GOOD) + 4):
        tokens.append(sampled(backend, 0, position, tokens[-1:]).token)
    backend.execute(Step(verbs=(Close(0),)))
    return tokens


def alone(backend: LlamaBackend, sampling: Sampling) -> list[int]:
    backend.execute(Step(verbs=(Open(0, sampling, GOOD),)))
    return rest(backend, sampled(backend, 0, 0, GOOD).token)


@pytest.mark.parametrize("targets", [(), BAD[1:]], ids=["sampled", "scored"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3, temperature=1.0, top_k=40)], ids=str)
def test_a_sequence_of_nan_ends(backend: LlamaBackend, sampling: Sampling, targets: tuple[int, ...]) -> None:
    expected = alone(backend, sampling)
    backend.execute(Step(verbs=(Open(0, sampling, GOOD), Open(1, sampling, BAD))))
    result = backend.execute(Step(spans=(Span(1, 0, BAD, not targets, targets), Span(0, 0, GOOD, True))))
    assert set(result.faults) == {1}
    assert "BadLogits" in result.faults[1]
    assert (result.failures, result.scores, set(result.samples)) == ({}, {}, {0})
    backend.execute(Step(verbs=(Close(1),)))
    assert rest(backend, result.samples[0].token) == expected
    assert alone(backend, sampling) == expected


def test_where_it_spoils_the_others_cells_another_process_does_better(model: Path) -> None:
    """Plain attention multiplies the cells of others by 0, which NaN survives."""
    with loaded(model, flash_attention=False) as backend:
        backend.execute(Step(verbs=(Open(0, GREEDY, GOOD), Open(1, GREEDY, BAD))))
        with pytest.raises(BadLogits):
            backend.execute(Step(spans=(Span(1, 0, BAD, True), Span(0, 0, GOOD, True))))


def test_a_panic_is_a_fault_of_its_sequence(backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch) -> None:

    def panic(self: ConstrainedOutput) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(ConstrainedOutput, "allowed", panic)
    constraint = Constraint(grammar=gbnf_to_lark('root ::= "a" | "b"'))
    backend.execute(Step(verbs=(Open(0, GREEDY, GOOD), Open(1, GREEDY, GOOD, constraint=constraint))))
    result = backend.execute(Step(spans=(Span(1, 0, GOOD, True), Span(0, 0, GOOD, True))))
    assert (set(result.faults), set(result.failures), set(result.samples)) == ({1}, set(), {0})
    backend.execute(Step(verbs=(Close(0), Close(1))))
