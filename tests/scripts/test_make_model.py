"""`scripts/make_model.py`: what it writes is a model that llama.cpp loads, speaks through and repeats."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from make_model import main
from random_model.architectures import WINDOW, Architecture
from random_model.blocks import BlockType
from random_model.borrowed import borrowed_vocabulary
from random_model.gguf_file import write_model
from random_model.shapes import SHAPES
from random_model.tensors import Quant
from random_model.vocabulary import build_vocabulary
from random_model.wanted import wanted_tensors

from tests.tiny_model import MAKE_MODEL, make_model, tiny_model_path

DEMO = Path(__file__).resolve().parents[2] / "model_assets" / "demo.gguf"
QUANTS = ("f32", "f16", "q8_0", "q4_0", "q4_k_m")

ODD_TEXTS = (
    "",
    " ",
    "   three spaces before, two after  ",
    "\n\n\tnew\r\nlines\n",
    "Once upon a time there was a young girl.",
    "naïve façade — “quotes” …",
    "日本語と한국어、中文。",
    "👩🏽‍🚀🇪🇺 z̸̢a̷lgo",
    "\x00\x01\x7f",
    '{"name": ["a", 1.5e-3], "x": null}',
    "<|im_end|> is text, if nobody parses it",
)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The script in this process: its exit code, and what it says on stderr."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["make_model.py", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, capsys.readouterr().err

    return run


def _load(path: Path, *, vocab_only: bool = False) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        str(path), n_ctx=256, n_threads=1, n_threads_batch=1, vocab_only=vocab_only, verbose=False
    )


def _greedy(model: llama_cpp.Llama, prompt: str, count: int) -> list[int]:
    model.reset()
    model.eval(model.tokenize(prompt.encode(), special=True))
    output: list[int] = []
    for _ in range(count):
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        output.append(int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax()))
        model.eval(output[-1:])
    return output


@pytest.mark.native
@pytest.mark.parametrize("quant", QUANTS)
def test_greedy_output_depends_on_the_prompt_and_repeats(quant: str) -> None:
    model = _load(tiny_model_path(quant))
    prompts = ["Hello", "Once upon a time", "The answer is 42.", "<|im_start|>user\nhi<|im_end|>\n"]
    outputs = [_greedy(model, prompt, 100) for prompt in prompts]
    assert outputs[0] == _greedy(model, prompts[0], 100)
    assert len({tuple(output) for output in outputs}) == len(prompts)
    assert all(len(set(output)) > 30 for output in outputs)
    assert not any(model.token_eos() in output for output in outputs)
    model.close()


@pytest.mark.native
def test_a_model_of_each_architecture_is_small_remembers_as_told_and_says_this_and_that(
    architecture: Architecture,
) -> None:
    path = tiny_model_path(shape=architecture.name)
    assert path.stat().st_size < 2_000_000
    model = _load(path)
    has_state = llama_cpp.llama_model_is_recurrent(model.model) or llama_cpp.llama_model_is_hybrid(
        model.model
    )
    window = llama_cpp.llama_model_n_swa(model.model)
    assert has_state == architecture.memory.has_state
    assert window == (WINDOW if architecture.memory.has_window else 0)
    prompts = ["Hello", "Once upon a time", "The answer is 42.", "<|im_start|>user\nhi<|im_end|>\n"]
    outputs = [_greedy(model, prompt, 100) for prompt in prompts]
    assert outputs[0] == _greedy(model, prompts[0], 100)
    assert len({tuple(output) for output in outputs}) == len(prompts)
    assert min(len(set(output)) for output in outputs) > 10
    assert not any(model.token_eos() in output for output in outputs)
    model.close()


TODAYS = {
    "qwen3-moe": "q4_k_m",
    "gpt-oss": "mxfp4",
    "qwen3.5": "q4_k_m",
    "lfm2": "q4_k_m",
    "granitehybrid": "q4_k_m",
}
"""The shapes of other architectures than llama, with the weights in which they are measured."""


@pytest.fixture(
    scope="module",
    params=[name if name == "gpt-oss" else pytest.param(name, marks=pytest.mark.slow) for name in TODAYS],
)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a shape, as wide as it is, with fewer layers and experts and a small vocabulary."""
    shape = SHAPES[request.param]
    facts = {**shape.own_facts, "*.block_count": 6, "*.vocab_size": 512, "*.feed_forward_length": 512}
    if shape.has_experts:
        facts |= {"*.expert_count": 8}
    if isinstance(heads := facts["*.attention.head_count_kv"], list):
        facts |= {"*.attention.head_count_kv": heads[:6]}
    path = tmp_path_factory.mktemp("small") / f"{shape.name}.gguf"
    write_model(
        path,
        replace(shape, own_facts=facts),
        Quant(TODAYS[shape.name]),
        build_vocabulary(512, fim=False),
        seed=0,
        on_progress=lambda *_: None,
    )
    return path


@pytest.mark.native
def test_a_shape_of_today_loads_and_answers_differently_to_different_prompts(small: Path) -> None:
    model = _load(small)
    prompts = ["Hello", "Once upon a time", "The answer is 42."]
    outputs = [_greedy(model, prompt, 30) for prompt in prompts]
    assert outputs[0] == _greedy(model, prompts[0], 30)
    assert len({tuple(output) for output in outputs}) == len(prompts)
    assert min(len(set(output)) for output in outputs) > 10
    model.close()


@pytest.mark.native
def test_a_shape_of_today_has_the_types_that_llama_cpp_gives_to_its_tensors(small: Path) -> None:
    """As `llama-quantize` does: vectors, convolutions and the choice of experts stay as they are."""
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(small).tensors}
    expected = {
        "qwen3-moe": {"0.ffn_up_exps.weight": "Q4_K", "5.ffn_down_exps.weight": "Q6_K"},
        "gpt-oss": {"0.ffn_up_exps.weight": "MXFP4", "0.attn_q.weight": "Q8_0", "0.attn_q.bias": "F32"},
        "qwen3.5": {"0.attn_qkv.weight": "Q5_K", "3.attn_q.weight": "Q4_K", "0.ssm_conv1d.weight": "F32"},
        "lfm2": {"0.shortconv.in_proj.weight": "Q4_K", "0.shortconv.conv.weight": "F32"},
        "granitehybrid": {"0.ssm_in.weight": "Q4_K", "0.ssm_a": "F32", "5.attn_v.weight": "Q6_K"},
    }[small.stem]
    assert {name: types[f"blk.{name}"] for name in expected} == expected
    assert types.get("blk.0.ffn_gate_inp.weight", "F32") == "F32"
    assert types.get("output.weight", types["token_embd.weight"]) == (
        "Q8_0" if small.stem == "gpt-oss" else "Q6_K"
    )
    assert any(name.endswith("attn_q.bias") for name in types) == (small.stem == "gpt-oss")


@pytest.mark.native
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("1b", 1.04),
        ("mistral-7b", 7.24),
        ("qwen3-moe", 1.76),
        ("gpt-oss", 1.30),
        ("qwen3.5", 0.53),
        ("lfm2", 0.69),
        ("granitehybrid", 0.48),
    ],
)
def test_a_shape_has_as_many_parameters_as_its_model(name: str, billions: float) -> None:
    tensors = wanted_tensors(SHAPES[name], Quant.Q4_K_M, [])
    assert sum(math.prod(tensor.shape) for tensor in tensors) / 1e9 == pytest.approx(billions, abs=0.005)


def test_mxfp4_is_for_experts(tmp_path: Path, run: Run) -> None:
    code, message = run("--shape", "1b", "--quant", "mxfp4", "--output", tmp_path / "x.gguf")
    assert code == 2
    assert "argument --quant: mxfp4 is for experts, and 1b has none" in message


def test_a_model_of_an_architecture_has_plain_weights_only(tmp_path: Path, run: Run) -> None:
    arguments = ("--shape", "tiny-gemma3", "--quant", "q8_0", "--output", tmp_path / "x.gguf")
    code, message = run(*arguments)
    assert code == 2
    assert "argument --quant: tiny-gemma3 has f32 weights only" in message


@pytest.mark.native
def test_text_survives_the_tokenizer_english_takes_few_tokens_and_control_tokens_are_one() -> None:
    model = _load(tiny_model_path(), vocab_only=True)
    for text in ODD_TEXTS:
        assert model.detokenize(model.tokenize(text.encode(), add_bos=False)).decode() == text
    english = " There was a man who would not say what he had found in the house by the sea."
    assert len(model.tokenize(english.encode(), add_bos=False)) < len(english) / 2.5
    assert model.tokenize(b"<|im_end|>", special=True) == [model.token_bos(), model.token_eos()]
    model.close()


@pytest.mark.native
def test_fim_tokens_are_there_on_demand_only() -> None:
    plain, fim = (_load(tiny_model_path(fim=fim), vocab_only=True) for fim in (False, True))
    vocab = llama_cpp.llama_model_get_vocab(plain.model)
    assert llama_cpp.llama_vocab_fim_pre(vocab) == -1
    vocab = llama_cpp.llama_model_get_vocab(fim.model)
    ends = [llama_cpp.llama_vocab_fim_pre, llama_cpp.llama_vocab_fim_suf, llama_cpp.llama_vocab_fim_mid]
    text = b"<|fim_prefix|><|fim_suffix|><|fim_middle|>"
    assert fim.tokenize(text, add_bos=False, special=True) == [end(vocab) for end in ends]
    plain.close()
    fim.close()


@pytest.mark.native
def test_a_borrowed_tokenizer_is_cut_to_size_and_still_spells_everything(tmp_path: Path) -> None:
    path = tmp_path / "borrowed.gguf"
    make_model("--shape", "tiny", "--quant", "f16", "--tokenizer", str(DEMO), "--output", str(path))
    fields = gguf.GGUFReader(path).fields
    tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    assert (
        len(tokens) == SHAPES["tiny"].vocab < len(gguf.GGUFReader(DEMO).fields["tokenizer.ggml.tokens"].data)
    )
    assert {part for merge in merges for part in merge.split(" ")} <= set(tokens)
    model = _load(path)
    for text in ODD_TEXTS:
        assert model.detokenize(model.tokenize(text.encode(), add_bos=False)).decode() == text
    assert model.tokenize(b"<|im_end|>", add_bos=False, special=True) == [model.token_eos()]
    assert len(set(_greedy(model, "Once upon a time", 50))) > 15
    model.close()


def test_a_tokenizer_that_is_too_small_is_filled_with_unused_tokens() -> None:
    size = SHAPES["50m"].vocab
    vocab = borrowed_vocabulary(DEMO, size)
    unused = [token for token, kind in enumerate(vocab.kinds) if kind is gguf.TokenType.UNUSED]
    assert len(vocab.texts) == len(set(vocab.texts)) == len(vocab.kinds) == size
    assert unused
    assert set(unused) <= set(vocab.quiet)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path, run: Run) -> None:
    arguments = ("--shape", "tiny", "--quant", "f16", "--output", str(tmp_path / "x.gguf"), "--tokenizer")
    for borrowed, why in (
        (tiny_model_path(), "not byte-level BPE"),
        (tmp_path / "none.gguf", "No such file"),
    ):
        code, message = run(*arguments, borrowed)
        assert code == 2
        assert "argument --tokenizer" in message
        assert why in message


@pytest.mark.parametrize("quant", QUANTS)
def test_weights_are_centred_and_scaled(quant: str) -> None:
    """Every block type is read back by gguf's own dequantisation."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tiny_model_path(quant)).tensors}
    for name in ("blk.0.ffn_up.weight", "blk.1.attn_v.weight", "output.weight"):
        weights = gguf.dequantize(tensors[name].data, tensors[name].tensor_type)
        std = weights[300:].std() if name == "output.weight" else weights.std()
        assert std == pytest.approx(1 / 16, rel=0.02)  # 1 / sqrt(256)
        assert abs(weights.mean()) < std / 50


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "MXFP4"])
@pytest.mark.parametrize("std", [1 / 32, 0.05, 1.3])
def test_blocks_have_the_deviation_that_is_asked_for(kind: str, std: float) -> None:
    """MXFP4 scales by powers of two only, and must draw between two of them."""
    block = BlockType(gguf.GGMLQuantizationType[kind])
    rows = block.random(np.random.SFC64(1), np.full(256, std, dtype=np.float32), 1024)
    weights = gguf.dequantize(rows, block.type)
    assert weights.std() == pytest.approx(std, rel=0.02)
    assert abs(weights.mean()) < std / 100


def test_q4_k_m_mixes_types_as_llama_cpp_does() -> None:
    types = {
        tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tiny_model_path("q4_k_m")).tensors
    }
    assert types["output.weight"] == types["blk.1.attn_v.weight"] == types["blk.1.ffn_down.weight"] == "Q6_K"
    assert (
        types["token_embd.weight"] == types["blk.0.ffn_down.weight"] == types["blk.1.attn_q.weight"] == "Q4_K"
    )
    assert types["output_norm.weight"] == "F32"


def test_equal_arguments_give_equal_bytes(tmp_path: Path, run: Run) -> None:
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, ("7", "7", "8"), strict=True):
        assert run("--shape", "tiny", "--quant", "q4_k_m", "--seed", seed, "--output", path) == (0, "")
    first, same, other = (path.read_bytes() for path in paths)
    assert first == same
    assert first != other


def _chat_template() -> Template:
    source = gguf.GGUFReader(tiny_model_path()).fields["tokenizer.chat_template"].contents()
    return ImmutableSandboxedEnvironment().from_string(str(source))


def test_chat_template_renders_every_role_and_tools() -> None:
    # OpenAI's clients send the arguments back as text; templates are often given them parsed.
    calls = [{"function": {"name": "add", "arguments": arguments}} for arguments in ('{"a": 1}', {"b": 2})]
    rendered = _chat_template().render(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "2"},
        ],
        tools=[{"type": "function", "function": {"name": "add"}}],
        add_generation_prompt=True,
    )
    assert rendered == (
        "<|im_start|>system\nBe brief.\n\nYou may call these functions:\n<tools>\n"
        '{"function": {"name": "add"}, "type": "function"}\n</tools>\n'
        'To call one, answer with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|im_end|>\n'
        "<|im_start|>user\n1+1?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        '<tool_call>{"name": "add", "arguments": {"b": 2}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n2<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_chat_template_without_tools_is_plain_chatml() -> None:
    rendered = _chat_template().render(messages=[{"role": "user", "content": " hi "}])
    assert rendered == "<|im_start|>user\n hi <|im_end|>\n"


def test_wrong_arguments_exit_with_2_and_name_them(tmp_path: Path, run: Run) -> None:
    output = ["--output", tmp_path / "x.gguf"]
    for arguments in (["--shape", "huge", "--quant", "f16"], ["--shape", "tiny", "--quant", "q3"]):
        code, message = run(*arguments, *output)
        assert code == 2
        assert "invalid choice" in message
    code, message = run("--shape", "tiny", "--quant", "f16", "--seed", "-1", *output)
    assert code == 2
    assert "--seed" in message


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, run: Run) -> None:
    arguments = ["--shape", "tiny", "--quant", "f16", "--output"]
    for output, ran in ((tmp_path / "no" / "x.gguf", run), (tmp_path / "x.gguf", _with_small_files)):
        code, message = ran(*arguments, output)
        assert code == 1
        assert message.startswith(f"make_model: cannot write {output}: ")
        assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def _with_small_files(*arguments: object) -> tuple[int, str]:
    """The script in a process that may write small files only."""
    command = f'ulimit -f 1000; exec "{sys.executable}" "{MAKE_MODEL}" "$@"'
    done = subprocess.run(
        ["bash", "-c", command, "bash", *map(str, arguments)], capture_output=True, text=True
    )
    return done.returncode, done.stderr
