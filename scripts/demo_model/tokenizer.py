"""Byte-level BPE whose words fall into the same pieces with and without a space before them.

In ordinary byte-level BPE ` Zorvak` and `Zorvak` may share no piece, and copying a name from a sentence into
JSON is a translation. Here a word's own letters are merged first, and the space joins the first piece last of
all, if that piece is frequent: ` Zor` `vak` and `Zor` `vak`. Digits stand one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from demo_model.chat import CONTROL_TOKENS
from demo_model.merging import Pair, learn_merges

PRE = "smollm"
"""llama.cpp's name of the same splitting: digits one by one, then GPT-2's words."""
_CONTROL = re.compile("|".join(re.escape(text) for text in CONTROL_TOKENS))
_SPACE = "Ġ"  # byte-level BPE writes a space so
_SPLITTING = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
_SHARES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""How much of the room for merges those within words may take; the share with the fewest tokens wins."""


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of `size` pieces. The same texts give the same pieces, in the same order.

    Raises ValueError if the texts have too little variety for that many.
    """
    words = _counted_words(texts)
    bare: Counter[str] = Counter()
    for word, count in words.items():
        bare[word.removeprefix(_SPACE)] += count
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = size - len(CONTROL_TOKENS) - len(bytes_)
    inner = learn_merges(bare, room)
    tries = [_with_spaces(words, bytes_, inner[: int(room * share)], size) for share in _SHARES]
    full = [tokenizer for tokenizer in tries if tokenizer.get_vocab_size() == size]
    if not full:
        raise ValueError(f"the texts have too little variety for {size} pieces")
    return min(full, key=lambda tokenizer: _num_tokens(tokenizer, words))


def assemble(bytes_: Sequence[str], merges: Sequence[Pair]) -> Tokenizer:
    """Put the vocabulary together: control tokens, then single bytes, then what each merge makes."""
    pieces = [*CONTROL_TOKENS, *bytes_, *(left + right for left, right in merges)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_SPLITTING)
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS]
    tokenizer.add_special_tokens(control)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def _counted_words(texts: Iterable[str]) -> Counter[str]:
    """The words across which BPE may not merge, in the byte-level spelling, with their counts."""
    splitter = pre_tokenizers.Sequence(_SPLITTING)
    words: Counter[str] = Counter()
    for text in texts:
        for part in _CONTROL.split(text):
            words.update(word for word, _ in splitter.pre_tokenize_str(part))
    return words


def _with_spaces(words: Mapping[str, int], bytes_: list[str], inner: list[Pair], size: int) -> Tokenizer:
    """Merges: `inner` ones, then the space with the most frequent first pieces;
    at most `size` pieces in all."""
    firsts: Counter[str] = Counter()
    tokenizer = assemble(bytes_, inner)
    for word, count in words.items():
        if word.startswith(_SPACE) and len(word) > 1:
            firsts[tokenizer.model.tokenize(word)[1].value] += count
    ranked = sorted(firsts, key=lambda piece: (-firsts[piece], piece))
    missing = size - tokenizer.get_vocab_size()
    return assemble(bytes_, [*inner, *((_SPACE, piece) for piece in ranked[:missing])])


def _num_tokens(tokenizer: Tokenizer, words: Mapping[str, int]) -> int:
    return sum(count * len(tokenizer.model.tokenize(word)) for word, count in words.items())
