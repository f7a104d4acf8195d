"""Embedding models in llama.cpp: rows as plain llama.cpp computes them, packing, interruption."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.embedder import LlamaEmbedder
from openai_cpu_server.llama.model.model import native_log
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import repeated_interrupts
from tests.llama.odd_models import as_architecture, rewritten
from tests.tiny_bert import CLS, POSITIONS, SEP, TOKENS, WIDTH, TinyBert
from tests.tiny_model import tiny_model_path

RANK = llama_cpp.LLAMA_POOLING_TYPE_RANK
Vectors = npt.NDArray[np.float32]


@contextmanager
def loaded(path: Path, **options: object) -> Iterator[LlamaEmbedder]:
    engine_options = EngineOptions(model_path=str(path), threads=1, kernels="invariant", **options)  # type: ignore[arg-type]
    with closing(LlamaEmbedder.load_cold(engine_options, lambda fraction: None)) as embedder:
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


def rank_head(width: int, num_labels: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    shapes = {"cls": (width, width), "cls.output": (num_labels, width)}
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    return {
        name: (0.3 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in (weights | biases).items()
    }


def cross_encoder(folder: Path, labels: tuple[str, ...]) -> Path:
    """A BERT with a pooler over the first token, and a head of one number for each label."""
    facts = {"bert.pooling_type": RANK, "bert.classifier.output_labels": list(labels)}
    bert = TinyBert(pools_mean=False).write(folder / "bert.gguf")
    named = {"general.architecture": "bert", **facts}
    return rewritten(bert, folder / "ranker.gguf", named, rank_head(WIDTH, len(labels)))


def qwen3_ranker(folder: Path) -> Path:
    """Keep only the rows of yes and no in the output head, as the converter of Qwen3-Reranker does."""
    facts = {"qwen3.pooling_type": RANK, "qwen3.classifier.output_labels": ["yes", "no"]}
    norm = {f"blk.{n}.attn_{part}_norm.weight": np.ones(64, np.float32) for n in range(2) for part in "qk"}
    tensors = {**norm, "output.weight": None, "cls.output.weight": rank_head(256, 2)["cls.output.weight"]}
    return as_architecture(tiny_model_path(), folder / "qwen3.gguf", "qwen3", tensors, **facts)


MODELS: dict[str, Callable[[Path], Path]] = {
    "mean": lambda folder: TinyBert().write(folder / "bert.gguf"),
    "first token": lambda folder: TinyBert(pools_mean=False).write(folder / "bert.gguf"),
    "last token": lambda folder: tiny_model_path(),
    "score": lambda folder: cross_encoder(folder, LABELS["score"]),
    "classes": lambda folder: cross_encoder(folder, LABELS["classes"]),
    "yes or no": qwen3_ranker,
}


LABELS = {"score": ("LABEL_0",), "classes": ("bad", "so", "good"), "yes or no": ("yes", "no")}


def plain_rows(model: Path, inputs: list[tuple[int, ...]]) -> Vectors:
    native_log()
    handle = llama_cpp.llama_model_load_from_file(os.fsencode(model), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.embeddings, params.n_threads_batch, params.n_ctx, params.n_ubatch = True, 1, 64, 64
    params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_LAST if model == tiny_model_path() else -1
    context = llama_cpp.llama_init_from_model(handle, params)
    ranks = llama_cpp.llama_pooling_type(context) == RANK
    size = (llama_cpp.llama_model_n_cls_out if ranks else llama_cpp.llama_model_n_embd)(handle)
    found = []
    for tokens in inputs:
        if memory := llama_cpp.llama_get_memory(context):
            llama_cpp.llama_memory_clear(memory, True)
        data = (ctypes.c_int32 * len(tokens))(*tokens)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(data, len(tokens))) == 0
        found.append(np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), (size,)).copy())
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(handle)
    return np.array(found)


@pytest.mark.parametrize("flash_attention", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_plain_llama_cpp(tmp_path: Path, name: str, *, flash_attention: bool) -> None:
    model, random = MODELS[name](tmp_path), np.random.default_rng(3)
    lengths = (1, 2, 7, 16, 17, 30, POSITIONS)
    inputs = [(CLS, *map(int, random.integers(5, len(TOKENS), length)), SEP)[:length] for length in lengths]
    with loaded(model, flash_attention=flash_attention, kv_tokens=POSITIONS) as embedder:
        found, labels = embed(embedder, *inputs), embedder.info.labels
        alone = np.concatenate([embed(embedder, tokens) for tokens in inputs])
        assert (embedder.info.kind is ModelKind.RERANKS) == (name in LABELS)
    expected = plain_rows(model, inputs)
    assert found.shape == expected.shape
    assert labels == LABELS.get(name, ())
    for rows in (found, alone):
        assert np.abs(rows - expected).max() < 0.003 * np.abs(expected).max()
    assert np.ptp(expected, axis=0).max() > 0.1 * np.abs(expected).max(), "else any row would pass"


def test_pooling_that_is_not_specified_is_the_mean(tmp_path: Path) -> None:
    """llama.cpp would not pool at all, and would return no vector."""
    named = {"general.architecture": "bert", "bert.pooling_type": 2**32 - 1}
    unspecified = rewritten(TinyBert(pools_mean=False).write(tmp_path / "a.gguf"), tmp_path / "b.gguf", named)
    inputs = [(CLS, 7, 8, SEP)]
    with loaded(unspecified) as embedder:
        (found,) = embed(embedder, *inputs)
    (expected,) = plain_rows(TinyBert().write(tmp_path / "c.gguf"), inputs)
    (first_token,) = plain_rows(tmp_path / "a.gguf", inputs)
    assert np.abs(first_token - expected).max() > 0.01, "else a test could not see which pooling is used"
    assert np.abs(found - expected).max() < 0.003 * np.abs(expected).max()


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
        with repeated_interrupts(tiny.interrupt, tiny.context, at_node):
            result = tiny.embed(inputs)
        assert (result.interrupted, result.vectors) == (True, b"")
    tiny.interrupt()
    assert tiny.embed(inputs).interrupted
    np.testing.assert_array_equal(embed(tiny, *inputs), expected)


def test_cosines_of_minilm(minilm: Path) -> None:
    """Compare with the cosines that its authors publish for the texts 1 and 2, 1 and 3, 2 and 3."""
    texts = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    with Vocabulary.open(minilm) as vocabulary:
        inputs = [tuple(vocabulary.encode(text, add_special=True, parse_special=False)) for text in texts]
    with loaded(minilm) as embedder:
        vectors, info = embed(embedder, *inputs), embedder.info
    assert (info.embedding_size, info.max_input_tokens) == (384, 512)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = vectors @ vectors.T
    assert (found[0, 1], found[0, 2], found[1, 2]) == pytest.approx((0.6660, 0.1046, 0.1411), abs=0.01)
