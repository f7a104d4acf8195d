"""A written GGUF file is, for llama.cpp, the model and tokenizer that PyTorch had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import llama_cpp  # noqa: E402
from demo_model.chat import CHAT_TEMPLATE, CONTROL_TOKENS, segments  # noqa: E402
from demo_model.corpus.example import Split  # noqa: E402
from demo_model.corpus.mixture import whole_mixture  # noqa: E402
from demo_model.gguf_file import Quant, write_gguf  # noqa: E402
from demo_model.model import Llama  # noqa: E402
from demo_model.shapes import SHAPES  # noqa: E402
from demo_model.tokenizer import load_tokenizer, train_tokenizer  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

pytestmark = pytest.mark.native

NUM_PIECES = 1024
TEXTS = [
    "".join(segment.text for segment in segments(whole_mixture(seed=3).document(split, index)))
    for split in Split
    for index in range(1200)
]
ODD_TEXTS = [
    *("a  b", " a", "  a", "\n\n\nx  \n y\t\tz ", "\r\n a\r\n", "end \n", "e\u0301 \u00a0 \u2003x", " "),
    *("Zoë ÄÖÜ 日本語 🙂🙂 naïve", "½ ² ٣ 三", '{"a": [1,2.5],"b":null}\n', '"a_b-c/d\\e"f', "! ?  !!"),
    *("12 345x6 7", " 12", "007", "it's I'll DON'T we're", "x" * 300, "<|im_start|>user\n hi<|im_end|>\n\n"),
    "<|tool_call|><|endoftext|><|im_start|",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, NUM_PIECES)


@pytest.fixture(scope="module")
def model() -> Llama:
    torch.manual_seed(0)
    model = Llama(replace(SHAPES["tiny"], vocab=NUM_PIECES))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module", params=list(Quant))
def quant(request: pytest.FixtureRequest) -> Quant:
    assert isinstance(request.param, Quant)
    return request.param


@pytest.fixture(scope="module")
def loaded(
    model: Llama, tokenizer: Tokenizer, quant: Quant, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[llama_cpp.Llama]:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, model, tokenizer, quant)
    kind = llama_cpp.GGML_TYPE_F32
    native = llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=1, logits_all=True, verbose=False, type_k=kind, type_v=kind
    )
    yield native
    native.close()


def both_logits(
    model: Llama, loaded: llama_cpp.Llama, tokens: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    with torch.inference_mode():
        ours = model.logits(model(torch.tensor([tokens])))[0].numpy()
    loaded.reset()
    loaded.eval(tokens)
    return ours, loaded.scores[: len(tokens)]


def test_logits_agree(model: Llama, loaded: llama_cpp.Llama, tokenizer: Tokenizer, quant: Quant) -> None:
    tokens = tokenizer.encode("".join(TEXTS[:6]), add_special_tokens=False).ids[:400]
    assert len(tokens) == 400
    ours, native = both_logits(model, loaded, tokens)
    assert ours.std() > 0.5
    if quant is Quant.F32:
        assert np.abs(ours - native).max() < 1e-3
    same = (ours.argmax(1) == native.argmax(1)).mean()
    assert same >= (1.0 if quant is Quant.F32 else 0.9)


def test_llama_cpp_splits_texts_as_we_do(loaded: llama_cpp.Llama, tokenizer: Tokenizer) -> None:
    for text in [*TEXTS, *ODD_TEXTS]:
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        assert loaded.tokenize(text.encode(), add_bos=False, special=True) == ours
        assert tokenizer.decode(ours, skip_special_tokens=False) == text


def test_special_tokens_and_template(loaded: llama_cpp.Llama, tokenizer: Tokenizer) -> None:
    vocab = llama_cpp.llama_model_get_vocab(loaded.model)
    assert loaded.token_eos() == tokenizer.token_to_id("<|im_end|>")
    assert loaded.token_bos() == tokenizer.token_to_id("<|endoftext|>")
    assert not llama_cpp.llama_vocab_get_add_bos(vocab)
    assert loaded.metadata["tokenizer.chat_template"] == CHAT_TEMPLATE.read_text("utf-8").rstrip("\n")
    for text in CONTROL_TOKENS:
        assert llama_cpp.llama_vocab_is_control(vocab, tokenizer.token_to_id(text))
    is_end = llama_cpp.llama_vocab_is_eog
    ends = [text for text in CONTROL_TOKENS if is_end(vocab, tokenizer.token_to_id(text))]
    assert ends == ["<|endoftext|>", "<|im_end|>"]


def test_a_word_has_the_same_pieces_with_and_without_a_space(tokenizer: Tokenizer) -> None:
    for word in ("Zorvak", "Quinmbert", "Plonzia", "weather", "Brixley"):
        bare = tokenizer.encode(word).tokens
        spaced = tokenizer.encode(f" {word}").tokens
        assert "".join(spaced) == "Ġ" + "".join(bare)
        assert spaced[-len(bare) + 1 :] == bare[1:] or len(bare) == 1


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2026").tokens == ["2", "0", "2", "6"]


def test_the_same_texts_give_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    again = train_tokenizer(TEXTS, NUM_PIECES)
    assert again.to_str() == load_tokenizer(path).to_str() == tokenizer.to_str()


def test_texts_without_variety_make_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="too little variety"):
        train_tokenizer(["la la la"], NUM_PIECES)
