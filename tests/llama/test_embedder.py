"""Embedding models in llama.cpp: vectors against a reference, packing, interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.embedder import LlamaEmbedder
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import pressing
from tests.llama.odd_models import rewritten
from tests.tiny_bert import CLS, POSITIONS, SEP, TOKENS, WIDTH, TinyBert
from tests.tiny_model import tiny_model_path
from tests.tiny_rerankers import TinyCrossEncoder, TinyQwen3Ranker

pytestmark = pytest.mark.native

Vectors = npt.NDArray[np.float32]


@contextmanager
def loaded(path: Path, **options: object) -> Iterator[LlamaEmbedder]:
    chosen = EngineOptions(model_path=str(path), threads=1, **options)  # type: ignore[arg-type]
    with closing(LlamaEmbedder.load_cold(chosen, lambda fraction: None)) as embedder:
        assert embedder.warm_up()
        yield embedder


def embed(embedder: LlamaEmbedder, *inputs: tuple[int, ...]) -> Vectors:
    result = embedder.embed(inputs)
    assert not result.interrupted
    return np.frombuffer(result.vectors, np.float32).reshape(len(inputs), embedder.info.embedding_size)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyBert().write(tmp_path_factory.mktemp("bert") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny(file: Path) -> Iterator[LlamaEmbedder]:
    with loaded(file) as embedder:
        yield embedder


def some_inputs() -> list[tuple[int, ...]]:
    random = np.random.default_rng(3)
    lengths = (1, 2, 7, 16, 17, 30, POSITIONS)
    return [(CLS, *map(int, random.integers(5, len(TOKENS), length)), SEP)[:length] for length in lengths]


@pytest.mark.parametrize("flash_attention", [True, False])
@pytest.mark.parametrize("pools_mean", [True, False])
def test_vectors_are_those_of_the_book(tmp_path: Path, *, pools_mean: bool, flash_attention: bool) -> None:
    model, inputs = TinyBert(pools_mean=pools_mean), some_inputs()
    with loaded(model.write(tmp_path / "bert.gguf"), flash_attention=flash_attention) as embedder:
        found = embed(embedder, *inputs)
    for row, tokens in zip(found, inputs, strict=True):
        expected = model.vector(tokens)
        assert np.abs(row - expected).max() < 0.02 * np.abs(expected).max()


def test_packed_inputs_do_not_see_each_other(tiny: LlamaEmbedder) -> None:
    inputs = some_inputs()
    together = embed(tiny, *inputs)
    alone = np.concatenate([embed(tiny, tokens) for tokens in inputs])
    np.testing.assert_allclose(together, alone, atol=2e-3)


def test_pooling_that_is_not_specified_is_the_mean(tmp_path: Path) -> None:
    """Without it llama.cpp would pool nothing, and give no vector away."""
    named = {"general.architecture": "bert", "bert.pooling_type": 2**32 - 1}
    silent = rewritten(TinyBert(pools_mean=False).write(tmp_path / "a.gguf"), tmp_path / "b.gguf", named)
    (tokens,) = inputs = [(CLS, 7, 8, SEP)]
    with loaded(silent) as embedder:
        (found,) = embed(embedder, *inputs)
    expected = TinyBert().vector(tokens)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_facts_of_the_model_and_a_limit_of_the_inputs(file: Path, tiny: LlamaEmbedder) -> None:
    info = tiny.info
    assert (info.kind, info.architecture) == (ModelKind.EMBEDS, "bert")
    assert (info.embedding_size, info.max_input_tokens, info.context_limit) == (WIDTH, POSITIONS, POSITIONS)
    assert (info.kv_tokens, info.vocab_size) == (0, len(TOKENS))
    with loaded(file, kv_tokens=20) as embedder:
        assert embedder.info.max_input_tokens == 20
    with pytest.raises(StartupError, match="--ctx-size"), loaded(file, kv_tokens=0):
        pass


def test_a_whole_step_of_short_inputs(tiny: LlamaEmbedder) -> None:
    count = min(tiny.info.max_seqs, tiny.info.max_step_tokens)
    found = embed(tiny, *[(CLS,)] * count)
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape), atol=1e-3)


def test_an_interrupted_step_leaves_no_trace(tiny: LlamaEmbedder) -> None:
    inputs = [(CLS,) * POSITIONS] * (tiny.info.max_step_tokens // POSITIONS)
    expected = embed(tiny, *inputs)
    for at_node in (1, 9):
        with pressing(tiny.interrupt, tiny._context, at_node):
            result = tiny.embed(inputs)
        assert (result.interrupted, result.vectors) == (True, b"")
    tiny.interrupt()
    np.testing.assert_array_equal(embed(tiny, *inputs), expected)


def test_a_causal_model_gives_the_state_of_its_last_token() -> None:
    """The tiny generating model, embedding: a token behind the input changes its vector, one in another
    input does not."""
    one, other = (5, 6, 7), (5, 6, 8)
    with loaded(tiny_model_path(), kv_tokens=64) as embedder:
        alone, together = embed(embedder, one), embed(embedder, one, other, one)
    np.testing.assert_allclose(together[0], alone[0], atol=1e-3)
    np.testing.assert_allclose(together[2], alone[0], atol=1e-3)
    assert np.abs(together[1] - alone[0]).max() > 0.01


@pytest.mark.parametrize("labels", [("LABEL_0",), ("bad", "so", "good")])
def test_a_cross_encoder_gives_the_scores_of_the_book(tmp_path: Path, labels: tuple[str, ...]) -> None:
    model, inputs = TinyCrossEncoder(labels), some_inputs()
    with loaded(model.write(tmp_path)) as embedder:
        assert (embedder.info.kind, embedder.info.embedding_size) == (ModelKind.RERANKS, len(labels))
        assert embedder.info.labels == labels
        found = embed(embedder, *inputs)
    expected = np.array([model.scores(tokens) for tokens in inputs])
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    assert expected.std() > 0.1, "else every score would do"


def test_a_qwen3_reranker_gives_the_probabilities_of_the_book(tmp_path: Path) -> None:
    base = tiny_model_path()
    with Vocabulary.open(base) as vocabulary:
        model = TinyQwen3Ranker(vocab_size=vocabulary.vocab_size)
    random = np.random.default_rng(5)
    inputs = [tuple(map(int, random.integers(5, 500, length))) for length in (1, 2, 9, 17, 40)]
    with loaded(model.write(tmp_path, tokenizer_of=base), kv_tokens=64) as embedder:
        assert (embedder.info.kind, embedder.info.embedding_size) == (ModelKind.RERANKS, 2)
        found = embed(embedder, *inputs)
    expected = np.array([model.scores(tokens) for tokens in inputs])
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert expected[:, 0].std() > 0.1, "else every probability would do"


def test_cosines_of_minilm(minilm: Path) -> None:
    """Published by its authors, of the texts 1 and 2, 1 and 3, 2 and 3."""
    texts = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    with Vocabulary.open(minilm) as vocabulary:
        inputs = [tuple(vocabulary.encode(text, add_special=True, parse_special=False)) for text in texts]
    with loaded(minilm) as embedder:
        vectors, info = embed(embedder, *inputs), embedder.info
    assert (info.embedding_size, info.max_input_tokens) == (384, 512)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = vectors @ vectors.T
    assert (found[0, 1], found[0, 2], found[1, 2]) == pytest.approx((0.6660, 0.1046, 0.1411), abs=0.01)
