"""Adapters on the tiny model: their logits are those of a model that has them merged into its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.llama.backend import LlamaBackend
from tests.adapters import adapter, make_adapter
from tests.llama.driver import GREEDY
from tests.tiny_model import tiny_model_path

PROMPT = (5, 90, 17, 300, 44, 8, 61, 200)


@contextmanager
def serving(model: Path, *adapters: Adapter) -> Iterator[LlamaBackend]:
    options = EngineOptions(model_path=str(model), kv_tokens=512, max_seqs=4, threads=1)
    backend = LlamaBackend.load(options, lambda fraction: None)
    try:
        for one in adapters:
            load(backend, one)
        yield backend
    finally:
        backend.close()


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


class TestLogits:
    @pytest.mark.parametrize("kind", ["f32", "f16"])
    @pytest.mark.parametrize("scale", [1.0, -0.5])
    def test_those_of_merged_weights(self, tmp_path: Path, kind: str, scale: float) -> None:
        merged = tmp_path / "merged.gguf"
        path = make_adapter(
            tmp_path / "a.gguf", "--type", kind, "--merged", str(merged), "--scale", str(scale)
        )
        one = adapter(path, scale=scale)
        with serving(tiny_model_path(), one) as backend:
            plain, changed = logprobs_of(backend, None), logprobs_of(backend, one.key)
        with serving(merged) as backend:
            expected = logprobs_of(backend, None)
        assert difference(changed, expected) < 0.02
        assert difference(changed, plain) > 0.5

    def test_a_change_of_embedding_and_output(self, tmp_path: Path) -> None:
        """The embedding's two matrices are stored the other way round."""
        path = make_adapter(tmp_path / "a.gguf", "--targets", "output.weight")
        one = adapter(path)
        with serving(tiny_model_path(), one) as backend:
            assert difference(logprobs_of(backend, one.key), logprobs_of(backend, None)) > 0.1

    def test_each_step_computes_with_its_own(self, tmp_path: Path) -> None:
        one = adapter(make_adapter(tmp_path / "a.gguf"))
        other = adapter(make_adapter(tmp_path / "b.gguf", "--seed", "1"), "other")
        with serving(tiny_model_path()) as backend:
            plain = logprobs_of(backend, None)
        with serving(tiny_model_path(), one, other) as backend:
            alone = {key: logprobs_of(backend, key) for key in (one.key, other.key)}
            for key in (None, one.key, other.key, None, other.key, one.key, None):
                expected = plain if key is None else alone[key]
                assert difference(logprobs_of(backend, key), expected) < 1e-3
        assert difference(alone[one.key], alone[other.key]) > 0.5

    @pytest.mark.parametrize("quant", ["q4_k_m", "q8_0"])
    def test_beside_quantised_weights(self, tmp_path: Path, quant: str) -> None:
        """The base's products go to our kernels, the adapter's fall through to ggml."""
        merged, model = tmp_path / "merged.gguf", tiny_model_path(quant)
        path = make_adapter(tmp_path / "a.gguf", "--type", "f16", "--merged", str(merged), model=model)
        one = adapter(path)
        with serving(model, one) as backend:
            plain, changed = logprobs_of(backend, None), logprobs_of(backend, one.key)
        with serving(merged) as backend:
            expected = logprobs_of(backend, None)
        assert difference(changed, expected) < 0.25 * difference(changed, plain)


class TestLoading:
    def test_one_that_is_unloaded_is_gone_and_others_stay(self, tmp_path: Path) -> None:
        one = adapter(make_adapter(tmp_path / "a.gguf"))
        other = adapter(make_adapter(tmp_path / "b.gguf", "--seed", "1"), "other")
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


def written(path: Path, architecture: str = "llama", **more: object) -> gguf.GGUFWriter:
    """A writer of an adapter without tensors; keyword arguments replace what it says of itself."""
    writer = gguf.GGUFWriter(path, architecture)
    facts = {"general.type": "adapter", "adapter.type": "lora"} | more
    for key, value in facts.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
    return writer


def finished(writer: gguf.GGUFWriter, **tensors: tuple[int, ...]) -> None:
    """Shapes as numpy has them; `blk_0_attn_q_a` is A of that product."""
    for name, shape in tensors.items():
        tensor = name[:-2].replace("blk_0_", "blk.0.") + ".weight.lora" + name[-2:]
        writer.add_tensor(tensor, np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
        path = tmp_path / "a.gguf"
        architecture = str(facts.get("architecture", "llama"))
        more = {key: value for key, value in facts.items() if key != "architecture"}
        finished(written(path, architecture, **more), **GOOD)
        assert why in self.refused(backend, path)

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
        path = tmp_path / "a.gguf"
        finished(written(path), **tensors)
        assert why in self.refused(backend, path)

    def test_a_norm_that_llama_cpp_would_ignore(self, backend: LlamaBackend, tmp_path: Path) -> None:
        path = tmp_path / "a.gguf"
        writer = written(path)
        writer.add_tensor("blk.0.attn_norm.weight", np.ones(256, dtype=np.float32))
        finished(writer, **GOOD)
        assert "llama.cpp would not use it" in self.refused(backend, path)

    def test_an_embedding_that_is_the_output_too(self, tmp_path: Path) -> None:
        model, path = tmp_path / "tied.gguf", tmp_path / "a.gguf"
        write_tied(model)
        finished(written(path), token_embd_a=(1024, 4), token_embd_b=(256, 4))
        with serving(model) as backend:
            assert "uses for its output too" in self.refused(backend, path)

    def test_numbers_that_are_not_finite(self, backend: LlamaBackend, tmp_path: Path) -> None:
        path, writer = tmp_path / "a.gguf", written(tmp_path / "a.gguf")
        writer.add_tensor("blk.0.attn_q.weight.lora_a", np.full((4, 256), np.nan, dtype=np.float32))
        writer.add_tensor("blk.0.attn_q.weight.lora_b", np.ones((256, 4), dtype=np.float32))
        finished(writer)
        assert "not finite" in self.refused(backend, path)

    def test_no_gguf_file_and_a_truncated_one(self, backend: LlamaBackend, tmp_path: Path) -> None:
        text, cut = tmp_path / "text.gguf", tmp_path / "cut.gguf"
        text.write_text("no adapter")
        whole = make_adapter(tmp_path / "a.gguf").read_bytes()
        cut.write_bytes(whole[: len(whole) // 2])
        assert "is not a GGUF file" in self.refused(backend, text)
        assert "truncated or damaged" in self.refused(backend, cut)

    def test_a_model_is_no_adapter(self, backend: LlamaBackend) -> None:
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


def write_tied(path: Path) -> None:
    """The tiny model without an output matrix of its own."""
    model = gguf.GGUFReader(tiny_model_path())
    writer = gguf.GGUFWriter(path, "llama")
    for field in model.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            element = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    for tensor in model.tensors:
        if tensor.name != "output.weight":
            writer.add_tensor(tensor.name, tensor.data)
    finished(writer)
