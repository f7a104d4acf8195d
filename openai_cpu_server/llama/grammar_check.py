"""Does a text fit a grammar, and where does it stop fitting? llguidance, byte by byte; no model needed."""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from openai_cpu_server.errors import InvalidRequest

_END = 256


class _Bytes:
    """The vocabulary that TokenizerWrapper asks for: a token per byte, and one for the end."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)

    def __init__(self) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"<end>"]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@dataclass(frozen=True)
class Fit:
    """`accepted`: bytes that fit. `is_complete`: whether the grammar lets the text end after them."""

    accepted: int
    size: int
    is_complete: bool

    @property
    def fits(self) -> bool:
        return self.accepted == self.size and self.is_complete


class GrammarCheck:
    """One compiled grammar. Raises InvalidRequest if the text is not GBNF, or more than llguidance takes."""

    def __init__(self, gbnf: str) -> None:
        try:
            lark = gbnf_to_lark(gbnf)
            self._matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(lark), log_level=0)
        except Exception as error:
            raise InvalidRequest(f"The grammar cannot be read: {error}") from error
        if self._matcher.is_error():
            raise InvalidRequest(f"The grammar cannot be read: {self._matcher.get_error()}")

    def check(self, text: str) -> Fit:
        self._matcher.reset()
        tokens = list(text.encode())
        accepted = self._matcher.try_consume_tokens(tokens)
        return Fit(accepted, len(tokens), accepted == len(tokens) and self._matcher.is_accepting())


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))
