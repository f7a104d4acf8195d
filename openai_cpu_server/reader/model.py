"""Facts of a model, and access to readers."""

from __future__ import annotations

import functools
import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from openai_cpu_server.contract.grammar import GrammarAnswer, GrammarOrder, RefusedGrammar
from openai_cpu_server.contract.media import Picture, Sound
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import DeadlyInput, InvalidRequest
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation, RerankPrompts
from openai_cpu_server.reader import messages as wire
from openai_cpu_server.reader.messages import ModelSource, VocabularyFacts, valid_text
from openai_cpu_server.reader.pool import OpenedKey, ReaderPool, WorkKind

_LONG_CHARS = 128 * 1024
"""Takes 20 to 60 ms to tokenize."""
_LONGEST_PIECE = 256
_SHORT_WORD = 64
_WORDS = 1024


class ReadModel:
    """`ChatPromptMaker`, `Tokenizer`, `RerankPrompts` and `GrammarMaker` of a model, for any thread.

    Only `piece`, `decode` and facts suit event loops. The rest waits for a reader, and raises what
    `ReaderPool.do` raises.
    """

    def __init__(self, pool: ReaderPool, source: ModelSource) -> None:
        """Open the model. Raises StartupError."""
        self._pool = pool
        self._key, self.facts = pool.open(source)
        self.tokenizer = ReadTokenizer(pool, self._key, self.facts)
        answers = self.facts.rerank_answers
        self.rerank: RerankPrompts | None = answers and ReadRerank(pool, self._key, *answers)

    @property
    def has_template(self) -> bool:
        return self.facts.template is not None

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        texts = json.dumps([conversation.messages, conversation.tools, conversation.variables])
        others = msgspec.structs.replace(conversation, messages=(), tools=(), variables={})
        work = wire.RenderChat(self._key.number, others, texts.encode())
        return self._pool.do(work, model=self._key, kind=_kind_of(len(texts)))

    def make_grammar(self, order: GrammarOrder) -> GrammarAnswer:
        """Reject a grammar that kills the reader like a wrong one."""
        try:
            work = wire.MakeGrammar(self._key.number, order)
            return self._pool.do(work, model=self._key, kind=WorkKind.PROGRAM)
        except (DeadlyInput, InvalidRequest) as error:
            return RefusedGrammar(str(error), error.code)

    def picture(self, data: bytes, most_pixels: int, most_side: int) -> Picture:
        return self._pool.do(wire.OpenPicture(data, most_pixels, most_side), kind=WorkKind.MEDIA)

    def sound(
        self, data: bytes, rate: int, most_samples: int, most_at_once: int
    ) -> Iterator[tuple[Sound, ...]]:
        """Yield some pieces at a time."""
        work = wire.OpenSound(data, hashlib.sha256(data).digest(), rate, most_samples, most_at_once)
        is_last = False
        while not is_last:
            if (opened := self._pool.do(work, kind=WorkKind.MEDIA)) is None:
                work = msgspec.structs.replace(work, data=data)
                continue
            yield opened.pieces
            first, is_last = work.first + len(opened.pieces), opened.is_last
            work = msgspec.structs.replace(work, data=b"", first=first)

    def document(self, data: bytes, most_chars: int, charset: str = "") -> tuple[str | int, ...]:
        """Return texts and numbers of pictured pages."""
        return self._pool.do(wire.ReadDocument(data, most_chars, charset), kind=WorkKind.DOCUMENT).parts

    def page(self, data: bytes, number: int, most_pixels: int) -> Picture:
        return self._pool.do(wire.RenderPage(data, number, most_pixels), kind=WorkKind.DOCUMENT)

    def write_template(
        self, template: str, messages: Sequence[Mapping[str, str]] | None, suffix: str, most_tokens: int
    ) -> str:
        """Render in Ollama's template language, or only check without messages."""
        longest_piece = self.facts.longest_piece or _LONGEST_PIECE
        work = wire.WriteTemplate(
            template=template, messages=messages, suffix=suffix, most_chars=(most_tokens + 1) * longest_piece
        )
        return self._pool.do(work, kind=WorkKind.PROGRAM)

    def close(self) -> None:
        self._pool.forget(self._key)


class ReadTokenizer:
    def __init__(self, pool: ReaderPool, key: OpenedKey, facts: VocabularyFacts) -> None:
        self._pool = pool
        self._key = key
        self._facts = facts
        self._ends = array("I", facts.piece_ends)
        self._silent = frozenset(array("I", facts.silent))
        self._encoded_word = functools.lru_cache(_WORDS)(self._encoded)
        """Requests repeat the same marks."""
        self.vocab_size, self.end_tokens = facts.vocab_size, facts.end_tokens
        self.bos_text, self.eos_text = facts.bos_text, facts.eos_text
        self.bos, self.adds_bos = facts.bos, facts.adds_bos
        self.fim, self.marks = facts.fim, facts.marks

    def least_tokens(self, text: str) -> int:
        longest = self._facts.longest_piece
        return 0 if longest is None else len(text) // longest

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        encoded = self._encoded_word if len(text) <= _SHORT_WORD else self._encoded
        return list(encoded(text, add_special, parse_special))

    def _encoded(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self.encode_all([text], add_special=add_special, parse_special=parse_special)[0]

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        work = wire.EncodeTexts(
            key=self._key.number,
            texts=[valid_text(text) for text in texts],
            add_special=add_special,
            parse_special=parse_special,
        )
        return self._pool.do(work, model=self._key, kind=_kind_of(sum(map(len, texts))))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return bytes. Raises InvalidRequest for an unknown token."""
        if not 0 <= token < self._facts.vocab_size:
            message = f"{token} is not a token: the vocabulary has {self._facts.vocab_size}."
            raise InvalidRequest(message, param="tokens")
        if not special and token in self._silent:
            return b""
        return self._facts.pieces[self._ends[token - 1] if token else 0 : self._ends[token]]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        pieces, ends, silent = self._facts.pieces, self._ends, () if special else self._silent
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._facts.vocab_size:
            self.piece(next(token for token in tokens if not 0 <= token < self._facts.vocab_size))
        found = [
            pieces[ends[token - 1] if token else 0 : ends[token]] for token in tokens if token not in silent
        ]
        return b"".join(found).decode("utf-8", "replace")


@dataclass(frozen=True)
class ReadRerank:
    pool: ReaderPool
    key: OpenedKey
    yes: str
    no: str

    def prompts(self, query: str, documents: Sequence[str]) -> list[tuple[int, ...]]:
        texts = [valid_text(text) for text in documents]
        work = wire.RenderRerank(key=self.key.number, query=valid_text(query), documents=texts)
        num_chars = sum(map(len, texts)) + len(query) * len(texts)
        prompts = self.pool.do(work, model=self.key, kind=_kind_of(num_chars))
        return [tuple(tokens) for tokens in prompts]


def profiled(
    pool: ReaderPool, options: EngineOptions, profile_dir: str, user_options: frozenset[str]
) -> wire.Profiled:
    """Apply `tune`'s profile except for `user_options`."""
    return pool.do(wire.FindProfile(options=options, profile_dir=profile_dir, user_options=user_options))


def _kind_of(num_chars: int) -> WorkKind:
    return WorkKind.PROGRAM if num_chars > _LONG_CHARS else WorkKind.QUICK
