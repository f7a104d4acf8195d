"""Texts and token ids become what a model embeds or scores."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_cpu_server.api.calls.call import Asking
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import InputTooLong, InvalidRequest, PromptFarTooLong

Tokens = tuple[int, ...]
FOREIGN_TOKENS = "foreign_token_ids"


class InputReader(msgspec.Struct, frozen=True):
    """Makes inputs of at most `limit` tokens, special ones included. `truncate`: what is longer is cut."""

    tokenizer: Tokenizer
    limit: int
    truncate: bool

    @classmethod
    def of(cls, asking: Asking, *, truncate: bool | None, room: int = 0) -> InputReader:
        """`room`: so many tokens stay free for an answer."""
        limits = (asking.info.context_limit - room, asking.options.max_prompt_tokens)
        limit = min(limit for limit in limits if limit is not None)
        return cls(asking.chosen.model.tokenizer, limit, bool(truncate))

    def texts(self, texts: Sequence[str], params: Sequence[str]) -> tuple[Tokens, ...]:
        """Names of control tokens in them are text. Raises InputTooLong; InvalidRequest for a text that is no
        token."""
        read = self._read(texts, params, add_special=True)
        for tokens, param in zip(read, params, strict=True):
            if not tokens:
                message = f"Invalid value for '{param}': this model has no tokens for it."
                raise InvalidRequest(message, param=param, code="invalid_value")
        return tuple(self._fitted(*each) for each in zip(read, params, strict=True))

    def ids(self, ids: Sequence[int], param: str) -> Tokens:
        """Raises InputTooLong; InvalidRequest for ids that this model's tokenizer cannot have made."""
        begin, end = self.tokenizer.marks.begin, self.tokenizer.marks.end
        is_framed = tuple(ids[: len(begin)]) == begin and tuple(ids[len(ids) - len(end) :]) == end
        if not is_framed or min(ids) < 0 or max(ids) >= self.tokenizer.vocab_size:
            raise InvalidRequest(_foreign(param, self.tokenizer), param=param, code=FOREIGN_TOKENS)
        return self._fitted(ids, param)

    def pair(self, query: Sequence[int], text: Sequence[int], param: str) -> Tokens:
        """A query and a text for a cross-encoder, both without special tokens. Only the text is cut."""
        marks = self.tokenizer.marks
        head = (*marks.begin, *query, *marks.between)
        length = len(head) + len(text) + len(marks.end)
        room = self.limit - len(head) - len(marks.end)
        if length > self.limit and not (self.truncate and room >= 0):
            raise InputTooLong(tokens=length, limit=self.limit, param=param)
        return (*head, *text[: max(0, room)], *marks.end)

    def plain(self, texts: Sequence[str], params: Sequence[str]) -> list[list[int]]:
        """Tokens without special ones."""
        return self._read(texts, params, add_special=False)

    def _read(self, texts: Sequence[str], params: Sequence[str], *, add_special: bool) -> list[list[int]]:
        given = [self.readable(*each) for each in zip(texts, params, strict=True)]
        return self.tokenizer.encode_all(given, add_special=add_special, parse_special=False)

    def readable(self, text: str, param: str) -> str:
        """What is surely too long is cut before it is tokenised. Raises PromptFarTooLong."""
        least = self.tokenizer.least_tokens(text)
        if least <= self.limit:
            return text
        if not self.truncate:
            raise PromptFarTooLong(least_tokens=least, limit=self.limit, param=param)
        longest_token = len(text) // least + 1
        return text[: (self.limit + 1) * longest_token]

    def _fitted(self, tokens: Sequence[int], param: str) -> Tokens:
        if len(tokens) <= self.limit:
            return tuple(tokens)
        if not self.truncate:
            raise InputTooLong(tokens=len(tokens), limit=self.limit, param=param)
        end = self.tokenizer.marks.end
        return (*tokens[: self.limit - len(end)], *end)


def _foreign(param: str, tokenizer: Tokenizer) -> str:
    marks = tokenizer.marks
    begins = f", begin with {_listed(marks.begin)}" if marks.begin else ""
    ends = f", end with {_listed(marks.end)}" if marks.end else ""
    return (
        f"Invalid value for '{param}': these are not token ids of this model, which go from 0 to "
        f"{tokenizer.vocab_size - 1}{begins}{ends}. Send text instead; LangChain's OpenAIEmbeddings does so "
        "with check_embedding_ctx_length=False."
    )


def _listed(tokens: Tokens) -> str:
    return ", ".join(map(str, tokens))
