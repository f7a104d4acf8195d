"""Adapters on the tiny model: logits equal those of a model with the adapter merged into its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.llama.backend import LlamaBackend
from tests.adapters import adapter, make_adapter
from tests.llama.driver import GREEDY, loaded
from tests.llama.odd_models import add_facts, rewritten, written
from tests.tiny_model import tiny_model_path

PROMPT = (5, 90, 17, 300, 44, 8, 61, 200)


@contextmanager
def backend_with(model: Path, *adapters: Adapter) -> Iterator[LlamaBackend]:
    with loaded(model, threads=1) as backend:
        for one in adapters:
            load(backend, one)
        yield backend


def load(backend: LlamaBackend, one: Adapter) -> None:
    backend.check_adapter(one)
    assert backend.load_adapter(one).key == one.key


def logprobs_of(backend: LlamaBackend, key: str | None, slot: int = 0) -> dict[int, float]:
    opening = Open(slot, GREEDY, PROMPT, top_logprobs=backend.info.vocab_size)
    span = Span(slot, 0, PROMPT, sample=True)
    result = backend.execute(Step(verbs=(opening,), spans=(span,), adapter=key))
    backend.execute(Step(verbs=(Close(slot),)))
    return dict(result.samples[slot].logprob.top)


def difference(one: dict[int, float], other: dict[int, float]) -> float:
    return max(abs(one[token] - other[token]) for token in one)


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_logits_are_those_of_merged_weights(tmp_path: Path, kind: str, scale: float) -> None:
    merged = tmp_path / "merged.gguf"
    more = ("--merged", str(merged), "--scale", str(scale), "--type", kind)
    one = adapter(make_adapter(tmp_path / "a.gguf", *more, model=tiny_model_path()), scale=scale)
    with backend_with(tiny_model_path(), one) as backend:
        plain, changed = logprobs_of(backend, None), logprobs_of(backend, one.key)
    assert difference(changed, plain) > 0.5
    with backend_with(merged) as backend:
        assert difference(changed, logprobs_of(backend, None)) < 0.02


def test_unloading_an_adapter_leaves_the_others_loaded(tmp_path: Path) -> None:
    one = adapter(make_adapter(tmp_path / "a.gguf", "--rank", "4"))
    other = adapter(make_adapter(tmp_path / "b.gguf", "--seed", "1"), "other")
    with backend_with(tiny_model_path(), other) as backend:
        plain, expected = logprobs_of(backend, None), logprobs_of(backend, other.key)
        backend.check_adapter(one)
        properties = backend.load_adapter(one)
        assert (properties.rank, properties.num_tensors) == (4, 14)
        assert 0 < properties.size_bytes < Path(one.path).stat().st_size
        logprobs_of(backend, one.key)
        backend.unload_adapter(one.key)
        assert difference(logprobs_of(backend, None), plain) < 1e-3
        assert difference(logprobs_of(backend, other.key), expected) < 1e-3
        load(backend, one)


GOOD: dict[str, tuple[int, ...]] = {"blk_0_attn_q_a": (4, 256), "blk_0_attn_q_b": (256, 4)}


def write_adapter(
    path: Path,
    pairs: dict[str, tuple[int, ...]] = GOOD,
    *,
    more: dict[str, np.ndarray] | None = None,
    architecture: str = "llama",
    **facts: object,
) -> Path:
    """Write an adapter: shapes of its matrices as in numpy, further tensors, and other metadata."""
    writer = gguf.GGUFWriter(path, architecture)
    add_facts(writer, {"general.type": "adapter", "adapter.type": "lora", **facts})
    for name, shape in pairs.items():
        tensor = name[:-2].replace("blk_0_", "blk.0.") + ".weight.lora" + name[-2:]
        writer.add_tensor(tensor, np.ones(shape, dtype=np.float32))
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    return written(writer, path)


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    with backend_with(tiny_model_path()) as backend:
        yield backend


def refusal(backend: LlamaBackend, path: Path) -> str:
    with pytest.raises(AdapterFailed) as caught:
        load(backend, adapter(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


_LORA = "blk.0.attn_q.weight.lora"


NAN = {f"{_LORA}_a": np.full((4, 256), np.nan, np.float32), f"{_LORA}_b": np.ones((256, 4), np.float32)}
NORM = {"blk.0.attn_norm.weight": np.ones(256, np.float32)}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"general.type": "model"}, "is not an adapter"),
        ({"general.type": 7}, "is not an adapter"),
        ({"adapter.type": "cvec"}, "its adapter.type is 'cvec'"),
        ({"architecture": "qwen2"}, "for models of the architecture 'qwen2'; tiny-f32"),
        ({"adapter.lora.alpha": 16}, "adapter.lora.alpha is not a float32"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "activated LoRA"),
        ({"more": NORM}, "llama.cpp would not use it"),
        ({"pairs": {}, "more": NAN}, "not finite"),
        *(
            ({"pairs": pairs}, why)
            for pairs, why in (
                ({}, "has no tensors"),
                ({"blk_0_attn_q_a": (4, 256)}, "only one of the two matrices for 'blk.0.attn_q.weight'"),
                ({"blk_0_attn_q_a": (4, 128), "blk_0_attn_q_b": (256, 4)}, "is 256 x 256, and its change is"),
                ({"blk_0_attn_q_a": (4, 256), "blk_0_attn_q_b": (256, 5)}, "does not fit the model"),
                ({"blk_0_attn_q_a": (1, 4, 256), "blk_0_attn_q_b": (3, 256, 4)}, "does not fit the model"),
                ({"blk_0_attn_z_a": (4, 256), "blk_0_attn_z_b": (256, 4)}, "which the model does not have"),
                ({"blk_0_attn_norm_a": (4, 256), "blk_0_attn_norm_b": (1, 4)}, "not a matrix of a product"),
                ({"token_embd_a": (1024, 4), "token_embd_b": (256, 8)}, "does not fit the model"),
            )
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_wrong_adapters(backend: LlamaBackend, tmp_path: Path, facts: dict[str, object], why: str) -> None:
    assert why in refusal(backend, write_adapter(tmp_path / "a.gguf", **facts))


def test_an_adapter_of_a_tied_embedding_is_refused(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", {"token_embd_a": (1024, 4), "token_embd_b": (256, 4)})
    tied = rewritten(tiny_model_path(), tmp_path / "tied.gguf", {}, {"output.weight": None})
    with backend_with(tied) as backend:
        assert "uses for its output too" in refusal(backend, path)


def test_damaged_or_changed_files_are_refused_good_ones_served(backend: LlamaBackend, tmp_path: Path) -> None:
    text, cut, path = tmp_path / "text.gguf", tmp_path / "cut.gguf", tmp_path / "a.gguf"
    text.write_text("not an adapter")
    whole = make_adapter(path).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    assert "is not a GGUF file" in refusal(backend, text)
    assert "truncated or damaged" in refusal(backend, cut)
    assert "is not an adapter" in refusal(backend, tiny_model_path())
    one = adapter(path)
    make_adapter(path, "--seed", "1")
    with pytest.raises(AdapterFailed, match="no longer the file"):
        backend.check_adapter(one)
    one = adapter(path)
    backend.check_adapter(one)
    make_adapter(path, "--seed", "2")
    with pytest.raises(AdapterFailed, match="has changed while it was loaded"):
        backend.load_adapter(one)
    load(backend, one := adapter(path))
    assert difference(logprobs_of(backend, one.key), logprobs_of(backend, None)) > 0.5
