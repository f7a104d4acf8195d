"""Tokenizer of another model, cut to size, because OpenVINO reads no SentencePiece from GGUF."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, TokenType

from random_model.vocabulary import IM_END, Tokenizer, Vocabulary

_BPE = "gpt2"
_CHAT_TOKENS = {"<|im_start|>", IM_END}
_FIRST_LETTERS = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level BPE writes as the character of the same number; the others follow from 256 on."""


class UnfitTokenizer(ValueError): ...


def borrowed_vocabulary(path: Path, size: int) -> Vocabulary:
    """Return the first `size` tokens of a byte-level BPE tokenizer, with their merges. Merging has
    numbered them, so the first ones are whole without the others. Unused tokens fill up to `size`. Raises
    OSError, UnfitTokenizer."""
    texts, kinds, merges, tokenizer = _read(path)
    missing = max(0, size - len(texts))
    texts = [*texts[:size], *(f"<|unused_{i}|>" for i in range(missing))]
    kinds = [*kinds[:size], *[TokenType.UNUSED] * missing]
    kept = set(texts)
    if not {tokenizer.bos, tokenizer.eos, tokenizer.unknown} <= set(range(size)) or not kept >= _CHAT_TOKENS:
        raise UnfitTokenizer(f"{path.name}: its chat tokens are not among the first {size}")
    return Vocabulary(
        texts,
        [],
        kinds,
        tokenizer,
        # llama.cpp wants at least one.
        merges=[merge for merge in merges if _result(merge) in kept] or merges[:1],
        quiet=[i for i, text in enumerate(texts) if kinds[i] is not TokenType.NORMAL or not is_text(text)],
    )


def _read(path: Path) -> tuple[list[str], list[TokenType], list[str], Tokenizer]:
    fields = GGUFReader(path).fields

    def field(name: str) -> object:
        found = fields.get(f"tokenizer.ggml.{name}")
        return None if found is None else found.contents()

    if field("model") != _BPE:
        raise UnfitTokenizer(f"{path.name}: its tokenizer is {field('model')}, not byte-level BPE")
    texts, kinds, merges = field("tokens"), field("token_type"), field("merges")
    numbers = [field(f"{name}_token_id") for name in ("bos", "eos", "unknown")]
    if not (isinstance(texts, list) and isinstance(kinds, list) and isinstance(merges, list)):
        raise UnfitTokenizer(f"{path.name}: it lacks tokens, their types or merges")
    bos, eos, unknown = (number if isinstance(number, int) else 0 for number in numbers)
    tokenizer = Tokenizer(_BPE, str(field("pre")), bos=bos, eos=eos, unknown=unknown, adds_bos=False)
    return texts, [TokenType(kind) for kind in kinds], merges, tokenizer


def _result(merge: str) -> str:
    return merge.replace(" ", "", 1)


def is_text(token: str) -> bool:
    """Return True if the bytes of a byte-level token are whole characters."""
    try:
        bytes(_BYTES[letter] for letter in token).decode()
    except (KeyError, UnicodeDecodeError):
        return False
    return True


def _byte_of_letter() -> dict[str, int]:
    others = (byte for byte in range(256) if byte not in _FIRST_LETTERS)
    same = {chr(byte): byte for byte in _FIRST_LETTERS}
    return same | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_of_letter()
