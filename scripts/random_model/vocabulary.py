"""Tokenizers: SentencePiece of any size (bytes, control tokens, English, syllables), and others' cut to size,
because OpenVINO reads no SentencePiece from GGUF."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGUFReader, TokenType

UNKNOWN, BOS = 0, 1
NUM_BYTES = 256
IM_END = "<|im_end|>"
MEDIA_MARKS = (
    "\n\n",
    "<fake_token_around_image>",
    "<global-img>",
    "<|img_thumbnail|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "[BEGIN_AUDIO]",
)
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"

_SPACE = "▁"  # SentencePiece writes a space so
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Tokenizer:
    model: str
    pre: str | None
    bos: int
    eos: int
    unknown: int
    adds_bos: bool


@dataclass(frozen=True)
class Vocabulary:
    """Parallel lists: text, score and kind of each token. BPE has merges instead of scores."""

    texts: list[str]
    scores: list[float]
    kinds: list[TokenType]
    tokenizer: Tokenizer
    merges: list[str] = field(default_factory=list)
    quiet: list[int] = field(default_factory=list)


def build_vocabulary(size: int, *, fim: bool, sees: bool = False) -> Vocabulary:
    """Return `size` tokens. Raises ValueError if bytes, control tokens and ASCII need more."""
    further = ((FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE) if fim else ()) + (MEDIA_MARKS if sees else ())
    control = ["<|im_start|>", IM_END, *further]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(NUM_BYTES)), *control]
    kinds = [
        TokenType.UNKNOWN,
        *[TokenType.CONTROL] * 2,
        *[TokenType.BYTE] * NUM_BYTES,
        *[TokenType.CONTROL] * len(control),
    ]
    pieces = _pieces(size - len(texts))
    # Merging takes the highest score first: pieces come in the order of their worth.
    scores = [0.0] * len(texts) + [-float(rank) for rank in range(len(pieces))]
    texts, kinds = texts + pieces, kinds + [TokenType.NORMAL] * len(pieces)
    tokenizer = Tokenizer("llama", None, bos=BOS, eos=texts.index(IM_END), unknown=UNKNOWN, adds_bos=True)
    quiet = [
        token
        for token, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL) or (kind is TokenType.BYTE and text != "<0x0A>")
    ]
    return Vocabulary(texts, scores, kinds, tokenizer, quiet=quiet)


def _pieces(count: int) -> list[str]:
    letters = [_SPACE, *(chr(code) for code in range(0x21, 0x7F))]
    if count < len(letters):
        raise ValueError(f"the vocabulary is {len(letters) - count} tokens too small for bytes and ASCII")
    # A small vocabulary keeps a third of its room for what is not the beginning of a word.
    beginnings = list(dict.fromkeys(_beginnings()))[: (count - len(letters)) * 2 // 3]
    candidates = itertools.chain(letters, beginnings, _listed("fragments.txt"), _syllables())
    return list(itertools.islice(_distinct_and_reachable(candidates), count))


def _listed(name: str) -> list[str]:
    return (_FOLDER / name).read_text(encoding="utf-8").split()


def _distinct_and_reachable(candidates: Iterator[str]) -> Iterator[str]:
    """Merging joins two neighbours at a time, so a piece must be two earlier ones joined."""
    seen: set[str] = set()
    for piece in candidates:
        splits = (piece[:cut] in seen and piece[cut:] in seen for cut in range(1, len(piece)))
        if piece not in seen and (len(piece) == 1 or any(splits)):
            seen.add(piece)
            yield piece


def _beginnings() -> Iterator[str]:
    for word in _listed("words.txt"):
        spaced = _SPACE + word
        yield from (spaced[:end] for end in range(2, len(spaced) + 1))


def _syllables() -> Iterator[str]:
    single = [consonant + vowel for consonant in "tnsrdlmkpbgfvhwzjcxy" for vowel in "eaoiu"]
    yield from single
    yield from (_SPACE + syllable for syllable in single)
    pairs = ["".join(pair) for pair in itertools.product(single, repeat=2)]
    yield from pairs
    yield from (_SPACE + pair for pair in pairs)
    yield from (pair + syllable for pair in pairs for syllable in single)


_BPE = "gpt2"
_CHAT_TOKENS = {"<|im_start|>", IM_END}
_FIRST_LETTERS = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level BPE writes as the character of the same number; others follow from 256 on."""


class UnfitTokenizer(ValueError): ...


def borrowed_vocabulary(path: Path, size: int) -> Vocabulary:
    """Return the first `size` tokens of a byte-level BPE tokenizer, with their merges, which are whole
    because merging has numbered them. Unused tokens fill up to `size`. Raises OSError, UnfitTokenizer."""
    texts, kinds, merges, tokenizer = _read(path)
    missing = max(0, size - len(texts))
    texts = [*texts[:size], *(f"<|unused_{i}|>" for i in range(missing))]
    kinds = [*kinds[:size], *[TokenType.UNUSED] * missing]
    left = set(texts)
    if not {tokenizer.bos, tokenizer.eos, tokenizer.unknown} <= set(range(size)) or not left >= _CHAT_TOKENS:
        raise UnfitTokenizer(f"{path.name}: its chat tokens are not among the first {size}")
    return Vocabulary(
        texts,
        [],
        kinds,
        tokenizer,
        # llama.cpp wants at least one.
        merges=[merge for merge in merges if merge.replace(" ", "", 1) in left] or merges[:1],
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


def is_text(token: str) -> bool:
    """Return True if the bytes of a byte-level token are whole characters."""
    try:
        bytes(_BYTES[letter] for letter in token).decode()
    except (KeyError, UnicodeDecodeError):
        return False
    return True


_BYTES = {chr(byte): byte for byte in _FIRST_LETTERS} | {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(_FIRST_LETTERS)))
}
