"""Text to tokens and back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openai_cpu_server.contract.model_info import FimTokens, SequenceMarks
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.model_source.bert import NewValue, write_gguf
from tests.llama.odd_models import rewritten
from tests.tiny_model import tiny_model_path

TEXTS = [
    "",
    "Hello world",
    "  two  spaces ",
    "Grüße, 世界 👋🏽",
    "nul \0 inside",
    "line\n\ttab",
    "<|im_start|>",
]


@pytest.mark.parametrize("text", [*TEXTS, "All work and no play. " * 50_000], ids=lambda text: text[:20])
def test_text_goes_there_and_back(vocabulary: Vocabulary, text: str) -> None:
    tokens = vocabulary.encode(text, add_special=False, parse_special=False)
    assert vocabulary.decode(tokens) == text
    assert b"".join(map(vocabulary.piece, tokens)) == text.encode()


def test_special_tokens_are_added_and_parsed_when_asked(vocabulary: Vocabulary) -> None:
    assert vocabulary.adds_bos
    assert vocabulary.bos is not None
    assert vocabulary.marks == SequenceMarks(begin=(vocabulary.bos,))
    assert vocabulary.encode("", add_special=True, parse_special=False) == [vocabulary.bos]
    (end,) = vocabulary.encode("<|im_end|>", add_special=False, parse_special=True)
    assert end in vocabulary.end_tokens
    assert len(vocabulary.encode("<|im_end|>", add_special=False, parse_special=False)) > 1


def test_control_tokens_have_no_text_unless_asked(vocabulary: Vocabulary) -> None:
    assert vocabulary.bos is not None
    tokens = vocabulary.encode("a<|im_end|>", add_special=True, parse_special=True)
    assert vocabulary.decode(tokens) == "a"
    assert vocabulary.decode(tokens, special=True) == "<s>a<|im_end|>"
    assert [vocabulary.piece(token) for token in vocabulary.end_tokens] == [b"", b""]
    assert (vocabulary.bos_text, vocabulary.eos_text) == ("<s>", "<|im_end|>")


def test_torn_characters_and_lone_surrogates_are_replaced(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.encode("世", add_special=False, parse_special=False)
    assert [vocabulary.piece(token) for token in tokens] == [b"\xe4", b"\xb8", b"\x96"]
    assert vocabulary.decode(tokens[:2]) == "\ufffd"
    tokens = vocabulary.encode("a\ud83d b \ud83d\ude00", add_special=False, parse_special=False)
    assert vocabulary.decode(tokens) == "a\ufffd b 😀"


def test_every_token_has_a_piece_and_nothing_else_has(vocabulary: Vocabulary) -> None:
    pieces = [vocabulary.piece(token, special=True) for token in range(vocabulary.vocab_size)]
    assert all(pieces)
    for token in (-1, vocabulary.vocab_size, 2**40):
        with pytest.raises(InvalidRequest, match=f"{token} is no token"):
            vocabulary.piece(token)


def test_many_threads_at_once(vocabulary: Vocabulary) -> None:
    texts = [f"{text} {number}" for number in range(40) for text in TEXTS]

    def there_and_back(text: str) -> str:
        return vocabulary.decode(vocabulary.encode(text, add_special=False, parse_special=False))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, texts)) == texts


def test_templates_come_from_the_file(tiny: Path, tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "tokenizer.chat_template": "{{ plain }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    with Vocabulary.open(rewritten(tiny, tmp_path / "named.gguf", changes)) as vocabulary:
        assert vocabulary.chat_template == "{{ plain }}"
        assert vocabulary.named_chat_template("tool_use") == "{{ tools }}"
        assert vocabulary.named_chat_template("other") is None


def test_infill_tokens_only_where_all_three_are(vocabulary: Vocabulary) -> None:
    assert vocabulary.fim is None
    with Vocabulary.open(tiny_model_path(fim=True)) as with_infill:
        fim = with_infill.fim
        assert isinstance(fim, FimTokens)
        assert len({fim.prefix, fim.suffix, fim.middle}) == 3
        assert all(with_infill.piece(token) == b"" for token in (fim.prefix, fim.suffix, fim.middle))


def test_a_closed_vocabulary_is_not_used(tiny: Path) -> None:
    vocabulary = Vocabulary.open(tiny)
    vocabulary.close()
    vocabulary.close()
    with pytest.raises(AssertionError, match="closed"):
        vocabulary.encode("a", add_special=False, parse_special=False)


def encoder_vocabulary(path: Path, **added: bool) -> Path:
    """BERT's special tokens and two words. `added`: what the file says that the tokenizer adds."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581hi", "\u2581you"]
    named = {"padding": 0, "unknown": 1, "bos": 2, "eos": 3, "seperator": 3}
    values: dict[str, NewValue] = {
        "general.architecture": "bert",
        "bert.block_count": 1,
        "bert.context_length": 8,
        "bert.embedding_length": 8,
        "bert.feed_forward_length": 8,
        "bert.attention.head_count": 1,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1],
        **{f"tokenizer.ggml.{name}_token_id": token for name, token in named.items()},
        **{f"tokenizer.ggml.add_{name}_token": is_added for name, is_added in added.items()},
    }
    with path.open("wb") as file:
        write_gguf(file, values, {})
    return path


@pytest.mark.parametrize(
    ("added", "between"),
    [({}, (3,)), ({"eos": True, "sep": False}, (3,)), ({"bos": True, "eos": True, "sep": True}, (3, 3))],
)
def test_marks_of_an_encoder(tmp_path: Path, added: dict[str, bool], between: tuple[int, ...]) -> None:
    with Vocabulary.open(encoder_vocabulary(tmp_path / "v.gguf", **added)) as vocabulary:
        assert vocabulary.encode("hi you", add_special=True, parse_special=True) == [2, 4, 5, 3]
        assert vocabulary.marks == SequenceMarks(begin=(2,), between=between, end=(3,))
        assert vocabulary.named_chat_template("rerank") is None
