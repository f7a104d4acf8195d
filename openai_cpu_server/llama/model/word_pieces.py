"""BERT's WordPiece, for texts that llama.cpp cuts otherwise than the models' own tokenizers do."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

_CONTROLS = ("Cc", "Cf", "Co")
"""What is not assigned (yet) stays: the reference does not know it for a control."""
LONGEST_WORD = 100
"""Characters; a longer word is unknown as a whole."""
_WORD_START = "\u2581"
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""As the reference has them."""


class WordPieces:
    """BERT's WordPiece, for texts that llama.cpp cuts otherwise than the models' own tokenizers do.

    llama.cpp drops the vowels of Hangul, and marks that take room, such as vowels of Devanagari; and it knows
    no longest word. English texts never get here.
    """

    def __init__(self, pieces: Mapping[str, int], *, unknown: int, lowercase: bool) -> None:
        """`pieces` by text, as llama.cpp has them: those that begin a word have U+2581 in front."""
        self._pieces = pieces
        self._unknown = unknown
        self._lowercase = lowercase
        self._longest = max(map(len, pieces), default=1)

    def encode(self, text: str) -> list[int]:
        return [token for word in self._words(text) for token in self._cut(word)]

    def _words(self, text: str) -> Iterator[str]:
        spaced = "".join(map(_spaced, text))
        if self._lowercase:
            # Character by character: a final sigma is one like all others.
            spaced = "".join(c.lower() for c in unicodedata.normalize("NFD", spaced) if _category(c) != "Mn")
        return (part for word in spaced.split() for part in "".join(map(_apart, word)).split())

    def _cut(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        marked, start, found = _WORD_START + word, 0, []
        while start < len(marked):
            ends = range(min(len(marked), start + self._longest), start, -1)
            end = next((end for end in ends if marked[start:end] in self._pieces), None)
            if end is None:
                return [self._unknown]
            found.append(self._pieces[marked[start:end]])
            start = end
        return found


def _category(character: str) -> str:
    return unicodedata.category(character)


def _spaced(character: str) -> str:
    """Without controls, and with room around ideographs."""
    if character in "\t\n\r" or _category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or _category(character) in _CONTROLS:
        return ""
    is_ideograph = any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
    return f" {character} " if is_ideograph else character


def _apart(character: str) -> str:
    """Punctuation stands alone; so do all signs of ASCII."""
    is_sign = character.isascii() and character.isprintable() and not character.isalnum()
    return f" {character} " if is_sign or _category(character).startswith("P") else character
