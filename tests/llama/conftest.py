"""Real llama.cpp on the tiny model, with backends that all tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.grammar.compile import grammar_tokenizer
from openai_cpu_server.llama.grammar.constraints import ModelTokens
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import loaded
from tests.tiny_model import tiny_model_path


@pytest.fixture(scope="session")
def tiny() -> Path:
    return tiny_model_path()


@pytest.fixture(scope="session")
def vocabulary(tiny: Path) -> Iterator[Vocabulary]:
    with Vocabulary.open(tiny) as vocabulary:
        yield vocabulary


@pytest.fixture(scope="session")
def backend(tiny: Path) -> Iterator[LlamaBackend]:
    """Backend of the whole session, whose slots a test closes after use."""
    with loaded(tiny, kv_tokens=4096, max_seqs=8, prefill_tokens=2048, threads=1) as backend:
        yield backend


@pytest.fixture(scope="session")
def words(vocabulary: Vocabulary) -> ModelTokens:
    return ModelTokens(vocabulary, grammar_tokenizer(vocabulary, for_many_masks=True))
