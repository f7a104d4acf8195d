"""Tokens of a model: encoding and decoding."""

from __future__ import annotations

import ctypes
import functools
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unicodedata import category, normalize

from openai_cpu_server.contract.model_info import ControlToken, FimTokens, SequenceMarks
from openai_cpu_server.errors import InvalidRequest, StartupError
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.model import Closable, Model

_CONTROLS = ("Cc", "Cf", "Co")
"""Unassigned characters (Cn) are missing, because the reference keeps them."""
LONGEST_WORD = 100
"""Characters. Longer words are unknown."""
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


class WordPieces:
    """BERT's WordPiece, because llama.cpp drops vowels of Hangul and Devanagari and has no longest word."""

    def __init__(
        self, pieces: Mapping[str, int], *, names: Collection[str] = (), unknown: int, lowercase: bool
    ) -> None:
        """`pieces`: words start with U+2581, as in llama.cpp. `names`: control tokens among them."""
        self._pieces = pieces
        self._names = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
        self._unknown = unknown
        self._lowercase = lowercase
        self._longest = max(map(len, pieces), default=1)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        if not parse_special:
            return [token for word in self._words(text) for token in self._cut(word)]
        found, start = list[int](), 0
        for name in self._names.finditer(text):
            found += [*self.encode(text[start : name.start()]), self._pieces[name[0]]]
            start = name.end()
        return found + self.encode(text[start:])

    def _words(self, text: str) -> Iterator[str]:
        spaced = "".join(map(_spaced, text))
        if self._lowercase:
            # Character by character: a final sigma is one like all others.
            spaced = "".join(c.lower() for c in normalize("NFD", spaced) if category(c) != "Mn")
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


def _spaced(character: str) -> str:
    if character in "\t\n\r" or category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or category(character) in _CONTROLS:
        return ""
    is_ideograph = any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
    return f" {character} " if is_ideograph else character


def _apart(character: str) -> str:
    """ASCII symbols count as punctuation."""
    is_sign = character.isascii() and character.isprintable() and not character.isalnum()
    return f" {character} " if is_sign or category(character).startswith("P") else character


_BERT_UNKNOWN = 100
"""llama.cpp's default."""
_SPARE_TOKENS = 16
_SILENT = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_WORDS_OF_TEXT = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)
"""Types that cover all text; others drop white space, or have one token for any unknown word."""
_PIECE_BYTES = 256
_BYTES_OF_TEXT = (*range(1, 0xC0), *range(0xC2, 0xF5))
_TRIAL = "".join(map(chr, range(1, 256))) + "\u20ac\u5b57\U0001f600"


class PieceTable(NamedTuple):
    text: bytes
    ends: array[int]
    silent: array[int]


class Vocabulary(Closable):
    """Implementation of the contract's `Tokenizer`. Any thread may call it."""

    def __init__(self, model: Model, *, owns_model: bool = False) -> None:
        self._model = model
        self._owns_model = owns_model
        if llama_cpp.llama_vocab_type(self.native) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            raise StartupError(f"{model.path} has no tokenizer.")
        self._size = int(llama_cpp.llama_vocab_n_tokens(self.native))

    @classmethod
    def open(cls, path: Path) -> Vocabulary:
        header = GgufHeader(path)
        _require_sound(header)
        model = Model.open_vocabulary(header)
        try:
            return cls(model, owns_model=True)
        except BaseException:
            model.close()
            raise

    @property
    def native(self) -> object:
        """Lives as long as the model."""
        return self._model.vocab

    @property
    def vocab_size(self) -> int:
        return self._size

    @functools.cached_property
    def chat_template(self) -> str | None:
        return self._model.chat_template()

    def named_chat_template(self, name: str) -> str | None:
        return self._model.chat_template(name)

    @property
    def bos(self) -> int | None:
        return self._special("bos")

    @property
    def eos(self) -> int | None:
        return self._special("eos")

    @property
    def bos_text(self) -> str:
        return self._text_of(self.bos)

    @property
    def eos_text(self) -> str:
        return self._text_of(self.eos)

    def _special(self, name: str) -> int | None:
        token = getattr(llama_cpp, f"llama_vocab_{name}")(self.native)
        return None if token == llama_cpp.LLAMA_TOKEN_NULL else int(token)

    def _text_of(self, token: int | None) -> str:
        return "" if token is None else self.decode([token], special=True)

    @property
    def adds_bos(self) -> bool:
        return bool(llama_cpp.llama_vocab_get_add_bos(self.native)) and self.bos is not None

    @functools.cached_property
    def fim(self) -> FimTokens | None:
        prefix, suffix, middle = map(self._special, ("fim_pre", "fim_suf", "fim_mid"))
        if prefix is None or suffix is None or middle is None:
            return None
        return FimTokens(prefix, suffix, middle, self._special("fim_rep"), self._special("fim_sep"))

    @functools.cached_property
    def marks(self) -> SequenceMarks:
        """EOS (or SEP) and SEP stand between query and text, as in llama-server."""
        around, vocab = self.encode("", add_special=True, parse_special=False), self.native
        num_begin = int(around[:1] == [self.bos])
        sep = self._special("sep")
        eos = sep if self.eos is None else self.eos
        adds_eos, adds_sep = llama_cpp.llama_vocab_get_add_eos, llama_cpp.llama_vocab_get_add_sep
        between = [eos] * bool(adds_eos(vocab)) + [sep] * bool(adds_sep(vocab))
        return SequenceMarks(
            begin=tuple(around[:num_begin]),
            between=tuple(token for token in between if token is not None),
            end=tuple(around[num_begin:]),
        )

    @functools.cached_property
    def end_tokens(self) -> frozenset[int]:
        vocab, is_end = self.native, llama_cpp.llama_vocab_is_eog
        return frozenset([token for token in range(self._size) if is_end(vocab, token)])

    @functools.cached_property
    def attributes(self) -> array[int]:
        vocab, attributes = self.native, llama_cpp.llama_vocab_get_attr
        return array("i", [attributes(vocab, token) for token in range(self._size)])

    @functools.cached_property
    def silent_tokens(self) -> frozenset[int]:
        """Tokens that have no bytes without `special`."""
        return self.end_tokens.union(token for token, bits in enumerate(self.attributes) if bits & _SILENT)

    @functools.cached_property
    def pieces(self) -> PieceTable:
        """Takes 0.1 s for 49,000 tokens."""
        vocab, render = self.native, llama_cpp.llama_token_to_piece
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        shown, text, ends = memoryview(buffer), bytearray(), array("I")
        for token in range(self._size):
            length = render(vocab, token, buffer, len(shown), 0, True)
            if length < 0:
                buffer = ctypes.create_string_buffer(-length)
                shown = memoryview(buffer)
                length = render(vocab, token, buffer, len(shown), 0, True)
            text += shown[:length]
            ends.append(len(text))
        return PieceTable(bytes(text), ends, array("I", sorted(self.silent_tokens)))

    @functools.cached_property
    def longest_piece(self) -> int | None:
        """Bytes, or None if one token can stand for any number."""
        if llama_cpp.llama_vocab_type(self.native) not in _WORDS_OF_TEXT:
            return None
        ends = self.pieces.ends
        return max((end - begin for begin, end in pairwise((0, *ends))), default=1) or 1

    def least_tokens(self, text: str) -> int:
        marks = (text.count(mark) for mark in self._silent_ends)
        return max(0 if self.longest_piece is None else len(text) // self.longest_piece, *marks, 0)

    @functools.cached_property
    def _silent_ends(self) -> list[str]:
        """Names of control tokens that end a conversation's messages."""
        ends = [end for end in self.end_tokens if self.attributes[end] & _SILENT]
        return [name for end in ends if (name := self.piece(end, special=True).decode("utf-8", "replace"))]

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        return [self.encode(text, add_special=add_special, parse_special=parse_special) for text in texts]

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        # Every WordPiece tokenizer splits short words of ASCII alike.
        is_plain = text.isascii() and (
            len(text) <= LONGEST_WORD or max(map(len, text.split()), default=0) <= LONGEST_WORD
        )
        pieces = None if is_plain else self._word_pieces
        if pieces is not None:
            around = _tokenized(self.native, "", add_special=add_special, parse_special=False)
            return [*around[:1], *pieces.encode(text, parse_special=parse_special), *around[1:]]
        return _tokenized(self.native, text, add_special=add_special, parse_special=parse_special)

    @functools.cached_property
    def _word_pieces(self) -> WordPieces | None:
        if llama_cpp.llama_vocab_type(self.native) != llama_cpp.LLAMA_VOCAB_TYPE_WPM:
            return None
        header = self._model.header
        texts = header.get_strings("tokenizer.ggml.tokens")
        lowercase = header.get_bool("tokenizer.ggml.normalizer.lowercase")
        unknown = header.get_int("tokenizer.ggml.unknown_token_id")
        return WordPieces(
            {text: token for token, text in texts.items()},
            names=[each.text for each in control_tokens(self)],
            unknown=_BERT_UNKNOWN if unknown is None else unknown,
            lowercase=lowercase is not False,
        )

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token. Raises `InvalidRequest` for other numbers."""
        if not 0 <= token < self._size:
            raise InvalidRequest(f"{token} is not a token: the vocabulary has {self._size}.", param="tokens")
        if not special and token in self.silent_tokens:
            return b""
        text, ends, _ = self.pieces
        return text[ends[token - 1] if token else 0 : ends[token]]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.piece(token, special=special) for token in tokens).decode("utf-8", "replace")

    def close(self) -> None:
        if self._owns_model:
            self._model.close()


def try_out(vocabulary: Vocabulary) -> None:
    """Crash now if the vocabulary crashes llama.cpp."""
    for special in (False, True):
        vocabulary.encode(_TRIAL, add_special=True, parse_special=special)


def control_tokens(vocabulary: Vocabulary) -> tuple[ControlToken, ...]:
    before, behind = llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP, llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP
    found = []
    for token, bits in enumerate(vocabulary.attributes):
        text = llama_cpp.llama_vocab_get_text(vocabulary.native, token) if bits & _SILENT else None
        if text:
            shown = text.decode("utf-8", "replace")
            found.append(ControlToken(shown, bool(bits & before), bool(bits & behind)))
    return tuple(found)


def _require_sound(header: GgufHeader) -> None:
    """llama.cpp would end the process for these vocabularies, at once or at some text."""
    texts = header.get_strings("tokenizer.ggml.tokens", errors="surrogateescape").values()
    distinct = set(texts)
    if len(distinct) < len(texts):
        twice, _ = Counter(texts).most_common(1)[0]
        raise StartupError(f"{header.path} is damaged: its vocabulary has the token {twice[:40]!a} twice.")
    if header.get_str("tokenizer.ggml.model") == "llama":  # SentencePiece
        lost = [byte for byte in _BYTES_OF_TEXT if distinct.isdisjoint((f"<0x{byte:02X}>", chr(byte)))]
        if lost:
            raise StartupError(
                f"{header.path} is damaged: its vocabulary cannot spell {len(lost)} of the bytes of texts, "
                f"such as 0x{lost[0]:02X}."
            )


def _tokenized(vocab: object, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates, which JSON can spell, become U+FFFD
        data = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    capacity = len(data) + _SPARE_TOKENS
    while True:
        tokens = (llama_cpp.llama_token * capacity)()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), tokens, capacity, add_special, parse_special)
        if count >= 0:
            return list(tokens[:count])
        capacity = -count
