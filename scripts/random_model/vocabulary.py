"""Tokenizers, and a SentencePiece one of any size: bytes, control tokens, English, syllables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gguf import TokenType

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

    def index(self, text: str) -> int:
        return self.texts.index(text)


def _quiet(texts: list[str], kinds: list[TokenType]) -> list[int]:
    silent_kinds = (TokenType.UNKNOWN, TokenType.CONTROL)
    return [
        token
        for token, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind in silent_kinds or (kind is TokenType.BYTE and text != "<0x0A>")
    ]


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
    return Vocabulary(texts, scores, kinds, tokenizer, quiet=_quiet(texts, kinds))


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
