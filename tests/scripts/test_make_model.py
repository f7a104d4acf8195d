"""`scripts/make_model.py` writes models that llama.cpp loads and samples from deterministically."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from make_model import main
from random_model.architectures import SHAPES, WINDOW, Architecture
from random_model.gguf_file import write_model
from random_model.tensors import BlockType, Quant
from random_model.vocabulary import build_vocabulary

from tests.tiny_model import make_model, tiny_model_path

DEMO = Path(__file__).resolve().parents[2] / "model_assets" / "demo.gguf"
PROMPTS = ("Hello", "Once upon a time", "The answer is 42.", "<|im_start|>user\nhi<|im_end|>\n")
ODD_TEXTS = (
    "   three spaces before, two after  ",
    "\n\n\tnew\r\nlines\n\x00\x01\x7f",
    "naïve façade — “quotes” … 日本語と한국어、中文。 👩🏽‍🚀🇪🇺 z̸̢a̷lgo",
    "<|im_end|> is text, if special tokens are not parsed",
)


@contextlib.contextmanager
def loaded(path: Path, *, vocab_only: bool = False) -> Iterator[llama_cpp.Llama]:
    options = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    with contextlib.closing(llama_cpp.Llama(str(path), vocab_only=vocab_only, **options)) as model:
        yield model


def greedy(model: llama_cpp.Llama, prompt: str, count: int) -> list[int]:
    model.reset()
    model.eval(model.tokenize(prompt.encode(), special=True))
    output: list[int] = []
    for _ in range(count):
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        output.append(int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax()))
        model.eval(output[-1:])
    return output


def expect_varied_outputs(model: llama_cpp.Llama, count: int, num_tokens: int) -> None:
    """Check that greedy outputs are deterministic, depend on the prompt and do not end."""
    outputs = [greedy(model, prompt, count) for prompt in PROMPTS]
    assert outputs[0] == greedy(model, PROMPTS[0], count)
    assert len({tuple(output) for output in outputs}) == len(PROMPTS)
    assert min(len(set(output)) for output in outputs) > num_tokens
    assert not any(model.token_eos() in output for output in outputs)


@pytest.mark.native
def test_a_model_of_each_architecture_is_small_and_has_its_kind_of_memory(architecture: Architecture) -> None:
    path = tiny_model_path(shape=architecture.name)
    assert path.stat().st_size < 2_000_000
    with loaded(path) as model:
        has_state = llama_cpp.llama_model_is_recurrent(model.model) or llama_cpp.llama_model_is_hybrid(
            model.model
        )
        assert has_state == architecture.memory.has_state
        window = WINDOW if architecture.memory.has_window else 0
        assert llama_cpp.llama_model_n_swa(model.model) == window
        expect_varied_outputs(model, 100, 10)


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize(
    ("name", "quant", "types"),
    [
        ("gpt-oss", "mxfp4", {"0.ffn_up_exps.weight": "MXFP4", "0.attn_q.weight": "Q8_0"}),
        ("granitehybrid", "q4_k_m", {"0.ssm_in.weight": "Q4_K", "5.attn_v.weight": "Q6_K"}),
    ],
)
def test_a_current_shape_generates_and_has_the_tensor_types_of_llama_cpp(
    tmp_path: Path, name: str, quant: str, types: dict[str, str]
) -> None:
    """Write a file of the shape's width, with fewer layers and experts and a small vocabulary."""
    shape, path = SHAPES[name], tmp_path / "small.gguf"
    facts = {**shape.own_facts, "*.block_count": 6, "*.vocab_size": 512, "*.feed_forward_length": 512}
    if shape.has_experts:
        facts |= {"*.expert_count": 8}
    if isinstance(heads := facts["*.attention.head_count_kv"], list):
        facts |= {"*.attention.head_count_kv": heads[:6]}
    vocabulary = build_vocabulary(512, fim=False)
    small = replace(shape, own_facts=facts)
    write_model(path, small, Quant(quant), vocabulary, seed=0, on_progress=lambda *_: None)
    found = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert {part: found[f"blk.{part}"] for part in types} == types
    with loaded(path) as model:
        expect_varied_outputs(model, 30, 10)


@pytest.mark.native
def test_text_survives_each_tokenizer(tmp_path: Path) -> None:
    foreign_tokenizer = tmp_path / "borrowed.gguf"
    make_model(
        "--shape", "tiny", "--quant", "f16", "--tokenizer", str(DEMO), "--output", str(foreign_tokenizer)
    )
    for path in (tiny_model_path(), tiny_model_path(fim=True), foreign_tokenizer):
        with loaded(path, vocab_only=True) as model:
            for text in ODD_TEXTS:
                assert model.detokenize(model.tokenize(text.encode(), add_bos=False)).decode() == text
            assert model.tokenize(b"<|im_end|>", add_bos=False, special=True) == [model.token_eos()]
            has_fim = llama_cpp.llama_vocab_fim_pre(llama_cpp.llama_model_get_vocab(model.model)) != -1
            assert has_fim == ("fim" in path.name)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"])
@pytest.mark.parametrize("std", [1 / 32, 0.05, 1.3])
def test_blocks_have_the_requested_deviation(kind: str, std: float) -> None:
    """Cover MXFP4, which has only powers of two as scales and must choose randomly between two."""
    block = BlockType(gguf.GGMLQuantizationType[kind])
    rows = block.random(np.random.SFC64(1), np.full(256, std, dtype=np.float32), 1024)
    weights = gguf.dequantize(rows, block.type)
    assert weights.std() == pytest.approx(std, rel=0.02)
    assert abs(weights.mean()) < std / 50


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    files = []
    for seed in ("7", "7", "8"):
        make_model("--shape", "tiny", "--quant", "q4_k_m", "--seed", seed, "--output", str(tmp_path / "m"))
        files.append((tmp_path / "m").read_bytes())
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("1b", "mxfp4"), 2, "argument --quant: mxfp4 is for experts, and 1b has none"),
        (("tiny-gemma3", "q8_0"), 2, "argument --quant: tiny-gemma3 has f32 weights only"),
        (("huge", "f16"), 2, "invalid choice"),
        (("tiny", "f16", "--seed", "-1"), 2, "--seed"),
        (("tiny", "f16", "--tokenizer", "none.gguf"), 2, "No such file"),
        (("tiny", "f16", "--output", "no/x.gguf"), 1, "make_model: cannot write no/x.gguf: "),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shape, quant, *more = arguments
    options = ["--output", "x.gguf", "--shape", shape, "--quant", quant, *more]
    monkeypatch.setattr(sys, "argv", ["make_model.py", *options])
    with pytest.raises(SystemExit, match=str(code)):
        sys.exit(main())
    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
