"""Conversion of texts and token ids to inputs of a model that embeds."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from openai_cpu_server.api.generation.call import ResolveContext
from openai_cpu_server.api.generation.schema import MixedText
from openai_cpu_server.api.pooling.body import (
    MAX_INPUTS,
    Cut,
    EmbeddingBody,
    Input,
    LlamaEmbedBody,
    PoolingBody,
    PoolingCall,
)
from openai_cpu_server.api.pooling.render import EmbeddingWriter, LlamaVectorsWriter
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import InputTooLong, InvalidRequest, PromptFarTooLong, wrong
from openai_cpu_server.http.clients import Client, account_of
from openai_cpu_server.http.context import Caller

Tokens = tuple[int, ...]
T = TypeVar("T")
FOREIGN_TOKENS = "foreign_token_ids"


class InputReader(msgspec.Struct, frozen=True):
    """Makes inputs of at most `limit` tokens, with special ones. `keeps_end`: cut at the beginning."""

    tokenizer: Tokenizer
    limit: int
    truncate: bool
    keeps_end: bool = False

    @classmethod
    def of(cls, asking: ResolveContext, cut: Cut | None, *, room: int = 0) -> InputReader:
        """`room`: tokens reserved for an answer."""
        asked = None if cut is None or cut.most_tokens is None else cut.most_tokens
        limits = (asking.info.context_limit - room, asking.options.max_prompt_tokens, asked)
        limit = min(limit for limit in limits if limit is not None)
        return cls(
            asking.chosen.model.tokenizer, limit, cut is not None, keeps_end=cut is not None and cut.keeps_end
        )

    def texts(self, texts: Sequence[str], params: Sequence[str]) -> tuple[Tokens, ...]:
        """Tokenize texts without control tokens. Raises InputTooLong, and InvalidRequest without tokens."""
        read = self._read(texts, params, add_special=True)
        return tuple(self._fitted(*each) for each in zip(read, params, strict=True))

    def ids(self, ids: Sequence[int], param: str) -> Tokens:
        """Check that this tokenizer can produce the ids. Raises InputTooLong, InvalidRequest."""
        begin, end = self.tokenizer.marks.begin, self.tokenizer.marks.end
        is_framed = tuple(ids[: len(begin)]) == begin and tuple(ids[len(ids) - len(end) :]) == end
        if not is_framed or min(ids) < 0 or max(ids) >= self.tokenizer.vocab_size:
            raise InvalidRequest(_foreign(param, self.tokenizer), param=param, code=FOREIGN_TOKENS)
        return self._fitted(ids, param)

    def pair(self, query: Sequence[int], text: Sequence[int], param: str) -> Tokens:
        """Join a query and a text for a cross-encoder. Only the text may be cut."""
        marks = self.tokenizer.marks
        head = (*marks.begin, *query, *marks.between)
        length = len(head) + len(text) + len(marks.end)
        room = self.limit - len(head) - len(marks.end)
        if length > self.limit and not (self.truncate and room >= 0):
            raise InputTooLong(tokens=length, limit=self.limit, param=param)
        return _require_some((*head, *self.kept(text, max(0, room)), *marks.end), param)

    def mixed(self, given: MixedText, param: str) -> Tokens:
        """Join tokens and texts, and add missing special tokens around them. Raises as `texts` and `ids`."""
        if isinstance(given, str):
            return self.texts([given], [param])[0]
        marks, strange = self.tokenizer.marks, [one for one in given if isinstance(one, int)]
        if strange and not 0 <= min(strange) <= max(strange) < self.tokenizer.vocab_size:
            raise InvalidRequest(_foreign(param, self.tokenizer), param=param, code=FOREIGN_TOKENS)
        tokens = [
            token
            for one in given
            for token in ((one,) if isinstance(one, int) else self.plain([one], [param])[0])
        ]
        if tuple(tokens[: len(marks.begin)]) == marks.begin:
            tokens = tokens[len(marks.begin) :]
        if marks.end and tuple(tokens[-len(marks.end) :]) == marks.end:
            tokens = tokens[: -len(marks.end)]
        return self._fitted([*marks.begin, *tokens, *marks.end], param)

    def kept(self, tokens: Sequence[T], room: int) -> Sequence[T]:
        return tokens[max(0, len(tokens) - room) :] if self.keeps_end else tokens[:room]

    def plain(self, texts: Sequence[str], params: Sequence[str]) -> list[list[int]]:
        return self._read(texts, params, add_special=False)

    def _read(self, texts: Sequence[str], params: Sequence[str], *, add_special: bool) -> list[list[int]]:
        given = [self.readable(*each) for each in zip(texts, params, strict=True)]
        return self.tokenizer.encode_all(given, add_special=add_special, parse_special=False)

    def readable(self, text: str, param: str) -> str:
        """Cut a text that is certainly too long before it is tokenized. Raises PromptFarTooLong."""
        least = self.tokenizer.least_tokens(text)
        if least <= self.limit:
            return text
        if not self.truncate:
            raise PromptFarTooLong(least_tokens=least, limit=self.limit, param=param)
        longest_token = len(text) // least + 1
        length = (self.limit + 1) * longest_token
        return text[-length:] if self.keeps_end else text[:length]

    def _fitted(self, tokens: Sequence[int], param: str) -> Tokens:
        _require_some(tokens, param)
        if len(tokens) <= self.limit:
            return tuple(tokens)
        if not self.truncate:
            raise InputTooLong(tokens=len(tokens), limit=self.limit, param=param)
        begin, end = self.tokenizer.marks.begin, self.tokenizer.marks.end
        inner = tokens[len(begin) : len(tokens) - len(end)]
        room = self.limit - len(begin) - len(end)
        if room < 0:
            raise InputTooLong(tokens=len(begin) + len(end), limit=self.limit, param=param)
        return (*begin, *self.kept(inner, room), *end)


def _require_some(tokens: Sequence[int], param: str) -> Tokens:
    if not tokens:
        raise wrong(f"Invalid value for '{param}': this model has no tokens for it.", param)
    return tuple(tokens)


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


def resolve_embeddings(body: EmbeddingBody, asking: ResolveContext) -> PoolingCall:
    dimensions = dimensions_of(body.dimensions, asking.info.embedding_size)
    inputs = read_inputs(body.input, InputReader.of(asking, body.cut), "input")
    request = embed_request(inputs, body, asking, id_prefix="embd-")
    writer = EmbeddingWriter(
        model=asking.chosen.name,
        prompt_tokens=request.num_tokens,
        is_base64=body.encoding_format == "base64",
        dimensions=dimensions,
    )
    return PoolingCall(work=request, timeout_s=body.timeout, render=writer)


def resolve_llama_embedding(body: LlamaEmbedBody, asking: ResolveContext) -> PoolingCall:
    if (body.content is None) == (body.input is None):
        raise wrong("Give exactly one of 'content' and 'input'.", "content")
    given, name = (body.input, "input") if body.content is None else (body.content, "content")
    assert given is not None, "one of them is given"
    if len(given) > MAX_INPUTS:
        raise wrong(f"Invalid value for '{name}': expected at most {MAX_INPUTS} inputs.", name)
    reader = InputReader.of(asking, body.cut)
    params = [name] if len(given) == 1 else [f"{name}[{index}]" for index in range(len(given))]
    inputs = tuple(reader.mixed(*each) for each in zip(given, params, strict=True))
    request = embed_request(inputs, body, asking, id_prefix="llama-")
    is_normalised = body.embd_normalize != -1
    return PoolingCall(work=request, timeout_s=body.timeout, render=LlamaVectorsWriter(is_normalised))


def embed_request(
    inputs: tuple[Tokens, ...], body: PoolingBody, asking: ResolveContext, *, id_prefix: str
) -> EmbedRequest:
    call_id = id_prefix + secrets.token_hex(12)
    return EmbedRequest(id=call_id, inputs=inputs, **asked_by(body, asking.sender, id_prefix))


def asked_by(body: PoolingBody, sender: Caller, id_prefix: str) -> dict[str, Any]:
    return {
        "priority": sender.priority(field=body.priority, tier=body.service_tier),
        "client": Client.of(sender.identity, body.user or body.safety_identifier).label,
        "account": account_of(sender.identity),
        "group": Client.group_of(sender.identity),
        "route": id_prefix.removesuffix("-"),
    }


def read_inputs(given: Input, reader: InputReader, name: str) -> tuple[Tokens, ...]:
    if isinstance(given, str):
        return reader.texts([given], [name])
    if isinstance(given[0], int):
        return (reader.ids([token for token in given if isinstance(token, int)], name),)
    params = [f"{name}[{index}]" for index in range(len(given))]
    if isinstance(given[0], str):
        return reader.texts([item for item in given if isinstance(item, str)], params)
    ids = [item for item in given if isinstance(item, list)]
    return tuple(reader.ids(*each) for each in zip(ids, params, strict=True))


def dimensions_of(asked: int | None, size: int) -> int | None:
    """Return the checked number of dimensions. Raises InvalidRequest."""
    if asked is not None and asked > size:
        raise wrong(f"Invalid value for 'dimensions': this model's vectors have {size}.", "dimensions")
    return asked
