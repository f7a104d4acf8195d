"""Adapters on the tiny model: their logits are those of a model that has them merged into its weights."""

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
from tests.llama.odd_models import add_facts, with_tensors, written
from tests.tiny_model import tiny_model_path

PROMPT = (5, 90, 17, 300, 44, 8, 61, 200)


@contextmanager
def serving(model: Path, *adapters: Adapter) -> Iterator[LlamaBackend]:
    with loaded(model, threads=1) as backend:
        for one in adapters:
            load(backend, one)
        yield backend


def load(backend: LlamaBackend, one: Adapter) -> None:
    backend.check_adapter(one)
    assert backend.load_adapter(one).key == one.key


def logprobs_of(backend: LlamaBackend, key: str | None, slot: int = 0) -> dict[int, float]:
    """By token, after the prompt."""
    opening = Open(slot, GREEDY, PROMPT, top_logprobs=backend.info.vocab_size)
    span = Span(slot, 0, PROMPT, sample=True)
    result = backend.execute(Step(verbs=(opening,), spans=(span,), adapter=key))
    backend.execute(Step(verbs=(Close(slot),)))
    logprob = result.samples[slot].logprob
    assert logprob is not None
    return dict(logprob.top)


def difference(one: dict[int, float], other: dict[int, float]) -> float:
    return max(abs(one[token] - other[token]) for token in one)


def two(folder: Path) -> tuple[Adapter, Adapter]:
    other = make_adapter(folder / "b.gguf", "--seed", "1")
    return adapter(make_adapter(folder / "a.gguf")), adapter(other, "other")


class TestLogits:
    def against_merged(self, folder: Path, model: Path, scale: float, *arguments: str) -> tuple[float, float]:
        """How far the model with the adapter is from that with merged weights, and from the plain one."""
        merged = folder / "merged.gguf"
        more = ("--merged", str(merged), "--scale", str(scale), *arguments)
        one = adapter(make_adapter(folder / "a.gguf", *more, model=model), scale=scale)
        with serving(model, one) as backend:
            plain, changed = logprobs_of(backend, None), logprobs_of(backend, one.key)
        with serving(merged) as backend:
            return difference(changed, logprobs_of(backend, None)), difference(changed, plain)

    @pytest.mark.parametrize("kind", ["f32", "f16"])
    @pytest.mark.parametrize("scale", [1.0, -0.5])
    def test_those_of_merged_weights(self, tmp_path: Path, kind: str, scale: float) -> None:
        error, change = self.against_merged(tmp_path, tiny_model_path(), scale, "--type", kind)
        assert error < 0.02
        assert change > 0.5


class TestLoading:
    def test_one_that_is_unloaded_is_gone_and_others_stay(self, tmp_path: Path) -> None:
        one, other = two(tmp_path)
        with serving(tiny_model_path(), one, other) as backend:
            plain, expected = logprobs_of(backend, None), logprobs_of(backend, other.key)
            logprobs_of(backend, one.key)
            backend.unload_adapter(one.key)
            assert difference(logprobs_of(backend, None), plain) < 1e-3
            assert difference(logprobs_of(backend, other.key), expected) < 1e-3
            load(backend, one)

    def test_what_is_loaded_is_told(self, tmp_path: Path) -> None:
        one = adapter(make_adapter(tmp_path / "a.gguf", "--rank", "4"))
        with serving(tiny_model_path()) as backend:
            backend.check_adapter(one)
            loaded = backend.load_adapter(one)
        assert (loaded.rank, loaded.num_tensors) == (4, 14)
        assert 0 < loaded.size_bytes < Path(one.path).stat().st_size


def made(
    path: Path,
    pairs: dict[str, tuple[int, ...]],
    architecture: str = "llama",
    more: dict[str, np.ndarray] | None = None,
    **facts: object,
) -> Path:
    """The file of an adapter. `pairs`: shapes as numpy has them; `blk_0_attn_q_a` is A of that product.
    `more`: other tensors. `facts` replace what it says of itself."""
    writer = gguf.GGUFWriter(path, architecture)
    add_facts(writer, {"general.type": "adapter", "adapter.type": "lora", **facts})
    for name, shape in pairs.items():
        tensor = name[:-2].replace("blk_0_", "blk.0.") + ".weight.lora" + name[-2:]
        writer.add_tensor(tensor, np.ones(shape, dtype=np.float32))
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    return written(writer, path)


GOOD: dict[str, tuple[int, ...]] = {"blk_0_attn_q_a": (4, 256), "blk_0_attn_q_b": (256, 4)}


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    with serving(tiny_model_path()) as backend:
        yield backend


class TestRefusals:
    """Each in one sentence; the backend goes on as if nothing had been asked of it."""

    def refused(self, backend: LlamaBackend, path: Path) -> str:
        with pytest.raises(AdapterFailed) as caught:
            load(backend, adapter(path))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize(
        ("facts", "why"),
        [
            ({"general.type": "model"}, "is no adapter"),
            ({"general.type": 7}, "is no adapter"),
            ({"adapter.type": "cvec"}, "its adapter.type is 'cvec'"),
            ({"architecture": "qwen2"}, "for models of the architecture 'qwen2'; tiny-f32"),
            ({"adapter.lora.alpha": 16}, "adapter.lora.alpha is no float32"),
            ({"adapter.alora.invocation_tokens": [1, 2]}, "activated LoRA"),
        ],
    )
    def test_of_another_kind(
        self, backend: LlamaBackend, tmp_path: Path, facts: dict[str, object], why: str
    ) -> None:
        assert why in self.refused(backend, made(tmp_path / "a.gguf", GOOD, **facts))

    @pytest.mark.parametrize(
        ("tensors", "why"),
        [
            ({}, "has no tensors"),
            ({"blk_0_attn_q_a": (4, 256)}, "only one of the two matrices for 'blk.0.attn_q.weight'"),
            ({"blk_0_attn_q_a": (4, 128), "blk_0_attn_q_b": (256, 4)}, "is 256 x 256, and its change is"),
            ({"blk_0_attn_q_a": (4, 256), "blk_0_attn_q_b": (256, 5)}, "does not fit the model"),
            ({"blk_0_attn_q_a": (1, 4, 256), "blk_0_attn_q_b": (3, 256, 4)}, "does not fit the model"),
            ({"blk_0_attn_z_a": (4, 256), "blk_0_attn_z_b": (256, 4)}, "which the model does not have"),
            ({"blk_0_attn_norm_a": (4, 256), "blk_0_attn_norm_b": (1, 4)}, "no matrix of a product"),
            ({"token_embd_a": (1024, 4), "token_embd_b": (256, 8)}, "does not fit the model"),
        ],
    )
    def test_of_wrong_tensors(
        self, backend: LlamaBackend, tmp_path: Path, tensors: dict[str, tuple[int, ...]], why: str
    ) -> None:
        assert why in self.refused(backend, made(tmp_path / "a.gguf", tensors))

    def test_a_norm_that_llama_cpp_would_ignore(self, backend: LlamaBackend, tmp_path: Path) -> None:
        norm = {"blk.0.attn_norm.weight": np.ones(256, dtype=np.float32)}
        path = made(tmp_path / "a.gguf", GOOD, more=norm)
        assert "llama.cpp would not use it" in self.refused(backend, path)

    def test_an_embedding_that_is_the_output_too(self, tmp_path: Path) -> None:
        path = made(tmp_path / "a.gguf", {"token_embd_a": (1024, 4), "token_embd_b": (256, 4)})
        tied = with_tensors(tiny_model_path(), tmp_path / "tied.gguf", {"output.weight": None})
        with serving(tied) as backend:
            assert "uses for its output too" in self.refused(backend, path)

    def test_numbers_that_are_not_finite(self, backend: LlamaBackend, tmp_path: Path) -> None:
        a, b = np.full((4, 256), np.nan, dtype=np.float32), np.ones((256, 4), dtype=np.float32)
        name = "blk.0.attn_q.weight.lora"
        path = made(tmp_path / "a.gguf", {}, more={f"{name}_a": a, f"{name}_b": b})
        assert "not finite" in self.refused(backend, path)

    def test_no_gguf_file_and_a_truncated_one(self, backend: LlamaBackend, tmp_path: Path) -> None:
        text, cut = tmp_path / "text.gguf", tmp_path / "cut.gguf"
        text.write_text("no adapter")
        whole = make_adapter(tmp_path / "a.gguf").read_bytes()
        cut.write_bytes(whole[: len(whole) // 2])
        assert "is not a GGUF file" in self.refused(backend, text)
        assert "truncated or damaged" in self.refused(backend, cut)
        assert "is no adapter" in self.refused(backend, tiny_model_path())

    def test_a_file_that_has_changed(self, backend: LlamaBackend, tmp_path: Path) -> None:
        path = make_adapter(tmp_path / "a.gguf")
        one = adapter(path)
        make_adapter(path, "--seed", "1")
        with pytest.raises(AdapterFailed, match="not the file any more"):
            backend.check_adapter(one)
        one = adapter(path)
        backend.check_adapter(one)
        make_adapter(path, "--seed", "2")
        with pytest.raises(AdapterFailed, match="has changed while it was loaded"):
            backend.load_adapter(one)

    def test_after_all_that_it_computes_as_before(self, backend: LlamaBackend, tmp_path: Path) -> None:
        one = adapter(make_adapter(tmp_path / "a.gguf"))
        load(backend, one)
        assert difference(logprobs_of(backend, one.key), logprobs_of(backend, None)) > 0.5
