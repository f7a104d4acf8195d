from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Union

import msgspec

from openai_cpu_server.api.generation.call import ResolveContext
from openai_cpu_server.api.generation.schema import MixedText
from openai_cpu_server.api.pooling import render, schema
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.model_info import ModelKind, Tokenizer
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.errors import InputTooLong, InvalidRequest, PromptFarTooLong, missing, wrong
from openai_cpu_server.http.context import Caller
from openai_cpu_server.http.keys import Client, account_of
from openai_cpu_server.prompt.chat_prompts import RerankPrompts

_Tokens = tuple[int, ...]
T = TypeVar("T")
FOREIGN_TOKENS = "foreign_token_ids"


class InputReader(msgspec.Struct, frozen=True):
    """Inputs of at most `limit` tokens, with special ones."""

    tokenizer: Tokenizer
    limit: int
    truncate: bool
    keeps_end: bool = False

    @classmethod
    def of(cls, context: ResolveContext, cut: schema.Cut | None, *, room: int = 0) -> InputReader:
        most_tokens = None if cut is None else cut.most_tokens
        limits = (context.info.context_limit - room, context.options.max_prompt_tokens, most_tokens)
        limit = min(limit for limit in limits if limit is not None)
        return cls(
            context.chosen.model.tokenizer,
            limit,
            cut is not None,
            keeps_end=cut is not None and cut.keeps_end,
        )

    def texts(self, texts: Sequence[str], params: Sequence[str]) -> tuple[_Tokens, ...]:
        read = self._read(texts, params, add_special=True)
        return tuple(self._fitted(*each) for each in zip(read, params, strict=True))

    def ids(self, ids: Sequence[int], param: str) -> _Tokens:
        """Reject ids that this tokenizer cannot produce."""
        begin, end = self.tokenizer.marks.begin, self.tokenizer.marks.end
        is_own = tuple(ids[: len(begin)]) == begin and tuple(ids[len(ids) - len(end) :]) == end
        is_own = is_own and min(ids) >= 0 and max(ids) < self.tokenizer.vocab_size
        if is_own and not (begin or end):  # ids of another vocabulary may lie in this one's range
            is_own = self.plain([self.tokenizer.decode(ids)], [param]) == [list(ids)]
        if not is_own:
            raise InvalidRequest(_foreign(param, self.tokenizer), param=param, code=FOREIGN_TOKENS)
        return self._fitted(ids, param)

    def pair(self, query: Sequence[int], text: Sequence[int], param: str) -> _Tokens:
        """Join a query and a text, of which only the text may be cut."""
        marks = self.tokenizer.marks
        head = (*marks.begin, *query, *marks.between)
        length = len(head) + len(text) + len(marks.end)
        room = self.limit - len(head) - len(marks.end)
        if length > self.limit and not (self.truncate and room >= 0):
            raise InputTooLong(tokens=length, limit=self.limit, param=param)
        return _require_some((*head, *self.trim(text, max(0, room)), *marks.end), param)

    def mixed(self, text: MixedText, param: str) -> _Tokens:
        """Add missing special tokens around the parts."""
        if isinstance(text, str):
            return self.texts([text], [param])[0]
        marks, ids = self.tokenizer.marks, [one for one in text if isinstance(one, int)]
        if ids and not 0 <= min(ids) <= max(ids) < self.tokenizer.vocab_size:
            raise InvalidRequest(_foreign(param, self.tokenizer), param=param, code=FOREIGN_TOKENS)
        texts = [one for one in text if isinstance(one, str)]
        encoded = iter(self.plain(texts, [param] * len(texts)) if texts else ())
        tokens = [token for one in text for token in ((one,) if isinstance(one, int) else next(encoded))]
        if tuple(tokens[: len(marks.begin)]) == marks.begin:
            tokens = tokens[len(marks.begin) :]
        if marks.end and tuple(tokens[-len(marks.end) :]) == marks.end:
            tokens = tokens[: -len(marks.end)]
        return self._fitted([*marks.begin, *tokens, *marks.end], param)

    def trim(self, tokens: Sequence[T], room: int) -> Sequence[T]:
        return tokens[max(0, len(tokens) - room) :] if self.keeps_end else tokens[:room]

    def plain(self, texts: Sequence[str], params: Sequence[str]) -> list[list[int]]:
        return self._read(texts, params, add_special=False)

    def _read(self, texts: Sequence[str], params: Sequence[str], *, add_special: bool) -> list[list[int]]:
        readable = [self.readable(*each) for each in zip(texts, params, strict=True)]
        return self.tokenizer.encode_all(readable, add_special=add_special, parse_special=False)

    def readable(self, text: str, param: str) -> str:
        """Cut a text that is certainly too long before tokenizing. Raises PromptFarTooLong."""
        least = self.tokenizer.least_tokens(text)
        if least <= self.limit:
            return text
        if not self.truncate:
            raise PromptFarTooLong(least_tokens=least, limit=self.limit, param=param)
        longest_token = len(text) // least + 1
        length = (self.limit + 1) * longest_token
        return text[-length:] if self.keeps_end else text[:length]

    def _fitted(self, tokens: Sequence[int], param: str) -> _Tokens:
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
        return (*begin, *self.trim(inner, room), *end)


def _require_some(tokens: Sequence[int], param: str) -> _Tokens:
    if not tokens:
        raise wrong(f"Invalid value for '{param}': this model has no tokens for it.", param)
    return tuple(tokens)


def _foreign(param: str, tokenizer: Tokenizer) -> str:
    marks = tokenizer.marks
    begins = f", begin with {', '.join(map(str, marks.begin))}" if marks.begin else ""
    ends = f", end with {', '.join(map(str, marks.end))}" if marks.end else ""
    return (
        f"Invalid value for '{param}': these are not token ids that this model's tokenizer gives for a text, "
        f"which go from 0 to {tokenizer.vocab_size - 1}{begins}{ends}. Send text instead; LangChain's "
        "OpenAIEmbeddings does so with check_embedding_ctx_length=False."
    )


def resolve_embeddings(body: schema.EmbeddingBody, context: ResolveContext) -> schema.PoolingCall:
    dimensions = dimensions_of(body.dimensions, context.info.embedding_size)
    inputs = read_inputs(body.input, InputReader.of(context, body.cut), "input")
    request = embed_request(inputs, body, context, id_prefix="embd-")
    writer = partial(
        render.embedding_list,
        model=context.chosen.name,
        prompt_tokens=request.num_tokens,
        is_base64=body.encoding_format == "base64",
        dimensions=dimensions,
    )
    return schema.PoolingCall(work=request, timeout_s=body.timeout, render=writer)


def resolve_llama_embedding(body: schema.LlamaEmbedBody, context: ResolveContext) -> schema.PoolingCall:
    if (body.content is None) == (body.input is None):
        raise wrong("Give exactly one of 'content' and 'input'.", "content")
    content, name = (body.input, "input") if body.content is None else (body.content, "content")
    assert content is not None, "one of them is set"
    if len(content) > schema.MAX_INPUTS:
        raise wrong(f"Invalid value for '{name}': expected at most {schema.MAX_INPUTS} inputs.", name)
    reader = InputReader.of(context, body.cut)
    params = [name] if len(content) == 1 else _numbered(name, content)
    inputs = tuple(reader.mixed(*each) for each in zip(content, params, strict=True))
    request = embed_request(inputs, body, context, id_prefix="llama-")
    writer = partial(render.llama_vectors, is_normalised=body.embd_normalize != -1)
    return schema.PoolingCall(work=request, timeout_s=body.timeout, render=writer)


_OLLAMA_CUT = schema.Cut(None, keeps_end=False)


def resolve_ollama_embeddings(body: schema.OllamaEmbedBody, context: ResolveContext) -> schema.PoolingCall:
    dimensions = dimensions_of(body.dimensions, context.info.embedding_size)
    if isinstance(body.input, str):
        texts = [body.input] if body.input else []
        params = ["input"] * len(texts)
    else:
        texts, params = body.input, _numbered("input", body.input)
    reader = InputReader.of(context, None if body.truncate is False else _OLLAMA_CUT)
    request = embed_request(reader.texts(texts, params), body, context, id_prefix="ollama-")
    writer = partial(
        render.ollama_vectors,
        model=context.chosen.name,
        prompt_tokens=request.num_tokens,
        dimensions=dimensions,
    )
    return schema.PoolingCall(work=request, timeout_s=body.timeout, render=writer)


def resolve_ollama_embedding(body: schema.OllamaOldEmbedBody, context: ResolveContext) -> schema.PoolingCall:
    texts = [body.prompt] if body.prompt else []
    inputs = InputReader.of(context, _OLLAMA_CUT).texts(texts, ["prompt"] * len(texts))
    request = embed_request(inputs, body, context, id_prefix="ollama-")
    return schema.PoolingCall(work=request, timeout_s=body.timeout, render=render.ollama_vector)


def embed_request(
    inputs: tuple[_Tokens, ...], body: schema.PoolingBody, context: ResolveContext, *, id_prefix: str
) -> EmbedRequest:
    call_id = id_prefix + secrets.token_hex(12)
    return EmbedRequest(id=call_id, inputs=inputs, **request_origin(body, context.caller, id_prefix))


def request_origin(body: schema.PoolingBody, caller: Caller, id_prefix: str) -> dict[str, Any]:
    return {
        "priority": caller.priority(field=body.priority, tier=body.service_tier),
        "client": Client.of(caller.identity, body.user or body.safety_identifier).label,
        "account": account_of(caller.identity),
        "group": Client.group_of(caller.identity),
        "route": id_prefix.removesuffix("-"),
    }


def read_inputs(content: schema.EmbeddingInput, reader: InputReader, name: str) -> tuple[_Tokens, ...]:
    if isinstance(content, str):
        return reader.texts([content], [name])
    if isinstance(content[0], int):
        return (reader.ids([token for token in content if isinstance(token, int)], name),)
    params = _numbered(name, content)
    if isinstance(content[0], str):
        return reader.texts([item for item in content if isinstance(item, str)], params)
    ids = [item for item in content if isinstance(item, list)]
    return tuple(reader.ids(*each) for each in zip(ids, params, strict=True))


def _numbered(name: str, items: Sequence[object]) -> list[str]:
    return [f"{name}[{index}]" for index in range(len(items))]


def dimensions_of(number: int | None, size: int) -> int | None:
    if number is not None and number > size:
        raise wrong(f"Invalid value for 'dimensions': this model's vectors have {size}.", "dimensions")
    return number


_PREFIX = "rerank-"
_SOFTMAX = frozenset({"qwen3", "qwen3vl"})
"""Rerankers whose scores llama.cpp already turns into probabilities."""
_FORCED = 100.0
"""Lifts yes and no above other tokens, after the log-probabilities are taken."""
_HALF = "\N{REPLACEMENT CHARACTER}"
"""Remainder of a cut character."""


class _Pairs(NamedTuple):
    """Query for all texts, or queries and texts of equal index."""

    queries: tuple[str, ...]
    texts: tuple[str, ...]
    query_at: str
    texts_at: str

    @property
    def params(self) -> list[str]:
        return _numbered(self.texts_at, self.texts)

    @property
    def query_params(self) -> list[str]:
        return [self.query_at] if len(self.queries) == 1 else _numbered(self.query_at, self.queries)

    def by_query(self) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
        if len(self.queries) == 1:
            yield self.queries[0], self.texts, self.params
            return
        for query, text, param in zip(self.queries, self.texts, self.params, strict=True):
            yield query, [text], [param]


_ScoredBody = Union[schema.RerankBody, schema.ScoreBody]
_Scoring = tuple[Union[EmbedRequest, schema.YesOrNo], render.ScoresOf]


def resolve_ranking(body: schema.RerankBody, context: ResolveContext) -> schema.PoolingCall:
    name, documents = _documents(body)
    pairs = _Pairs((body.query,), documents, "query", name)
    work, scores_of = _WAYS[context.chosen.model.kind](pairs, body, context)
    writer: schema.Writer
    if body.texts is not None:
        texts = documents if body.return_text else None
        writer = partial(render.text_ranking, scores_of, top_n=body.top_n, texts=texts)
    else:
        shown = None if body.return_documents is False else documents
        writer = partial(render.ranking, _head(work, context), scores_of, top_n=body.top_n, documents=shown)
    return schema.PoolingCall(work=work, timeout_s=body.timeout, render=writer)


def _documents(body: schema.RerankBody) -> tuple[str, tuple[str, ...]]:
    if body.documents is None and body.texts is None:
        raise missing("documents")
    if body.documents is not None and body.texts is not None:
        raise wrong("Give exactly one of 'documents' and 'texts'.", "texts")
    name, other = ("documents", "return_text") if body.texts is None else ("texts", "return_documents")
    if getattr(body, other) is not None:
        raise wrong(f"'{other}' cannot be combined with '{'texts' if body.texts else 'documents'}'.", other)
    if body.texts is not None:
        return name, tuple(body.texts)
    return name, tuple(item if isinstance(item, str) else item.text for item in body.documents or ())


def resolve_scores(body: schema.ScoreBody, context: ResolveContext) -> schema.PoolingCall:
    first, second = (
        (texts,) if isinstance(texts, str) else tuple(texts) for texts in (body.text_1, body.text_2)
    )
    if len(first) not in (1, len(second)):
        raise wrong("'text_1' must be one text, or as many as in 'text_2'.", "text_1")
    pairs = _Pairs(first, second, "text_1", "text_2")
    work, scores_of = _WAYS[context.chosen.model.kind](pairs, body, context)
    writer = partial(render.score_list, _head(work, context), scores_of)
    return schema.PoolingCall(work=work, timeout_s=body.timeout, render=writer)


def _head(work: EmbedRequest | schema.YesOrNo, context: ResolveContext) -> render.AnswerHead:
    usage = render.InputUsage.of(work.num_tokens)
    return {"id": work.id, "model": context.chosen.name, "usage": usage}


def resolve_classes(body: schema.ClassifyBody, context: ResolveContext) -> schema.PoolingCall:
    inputs = read_inputs(body.input, InputReader.of(context, body.cut), "input")
    request = embed_request(inputs, body, context, id_prefix="classify-")
    writer = partial(
        render.class_list,
        _head(request, context),
        labels=context.info.labels,
        # llama.cpp has made them probabilities already.
        activates=body.use_activation is not False and context.info.architecture not in _SOFTMAX,
    )
    return schema.PoolingCall(work=request, timeout_s=body.timeout, render=writer)


def _by_cosine(pairs: _Pairs, body: _ScoredBody, context: ResolveContext) -> _Scoring:
    reader = InputReader.of(context, body.cut)
    read = reader.texts((*pairs.queries, *pairs.texts), (*pairs.query_params, *pairs.params))
    request = embed_request(read, body, context, id_prefix=_PREFIX)
    return request, partial(render.cosines, num_queries=len(pairs.queries))


def _by_scores(pairs: _Pairs, body: _ScoredBody, context: ResolveContext) -> _Scoring:
    request = embed_request(_joined(pairs, body, context), body, context, id_prefix=_PREFIX)
    num_classes = context.info.embedding_size
    if num_classes > 1 and context.info.architecture not in _SOFTMAX:
        message = f"This model distinguishes {num_classes} classes and cannot score pairs. Use /classify."
        raise InvalidRequest(message, param="model", code="wrong_model_kind")
    squeezes = body.activates and context.info.architecture not in _SOFTMAX
    return request, render.probabilities if squeezes else render.first_numbers


def _by_yes_or_no(pairs: _Pairs, body: _ScoredBody, context: ResolveContext) -> _Scoring:
    """A query's prompts share a prefix, which is computed once."""
    model = context.chosen.model
    assert model.rerank is not None, "a model without one cannot rerank"
    if len(pairs.texts) > context.options.max_sequences:
        message = f"{len(pairs.texts)} texts: one call may have {context.options.max_sequences} sequences."
        raise wrong(message, pairs.texts_at)
    reader = InputReader.of(context, body.cut, room=1)
    prompts = _Prompts(reader, model.rerank).prompts_of(pairs)
    work = _questions(prompts, _answers(reader, model.rerank), body, context)
    return work, render.probabilities if body.activates else render.first_numbers


class _Prompts(NamedTuple):
    reader: InputReader
    template: RerankPrompts

    def prompts_of(self, pairs: _Pairs) -> list[_Tokens]:
        """Cut only the document."""
        found = []
        for query, documents, params in pairs.by_query():
            readable = [self.reader.readable(*each) for each in zip(documents, params, strict=True)]
            prompts = self.template.prompts(query, readable)
            found += [self._cut(*each, query) for each in zip(prompts, readable, params, strict=True)]
        return found

    def _cut(self, tokens: _Tokens, document: str, param: str, query: str) -> _Tokens:
        limit = self.reader.limit
        if len(tokens) <= limit:
            return tokens
        (pieces,) = self.reader.plain([document], [param]) if self.reader.truncate else ([],)
        num_pieces = len(pieces)
        while len(tokens) > limit:
            if not num_pieces:
                raise InputTooLong(tokens=len(tokens), limit=limit, param=param)
            num_pieces = max(0, num_pieces - (len(tokens) - limit))
            text = self.reader.tokenizer.decode(self.reader.trim(pieces, num_pieces))
            (tokens,) = self.template.prompts(query, [text.removesuffix(_HALF).removeprefix(_HALF)])
        return tokens


def _answers(reader: InputReader, template: RerankPrompts) -> tuple[int, int]:
    """Require different first tokens. Raises InvalidRequest."""
    yes, no = (tokens[:1] for tokens in reader.plain((template.yes, template.no), ("model", "model")))
    if yes == no:
        message = "This model cannot rerank, because its tokens for yes and no begin alike."
        raise InvalidRequest(message, param="model", code="unsupported_parameter")
    return yes[0], no[0]


def _questions(
    prompts: list[_Tokens],
    answers: tuple[int, int],
    body: _ScoredBody,
    context: ResolveContext,
) -> schema.YesOrNo:
    caller, call_id = context.caller, _PREFIX + secrets.token_hex(12)
    key = caller.identity.digest if context.options.isolate_by_key else None
    yes, no = answers
    origin = request_origin(body, caller, _PREFIX)
    requests = tuple(
        GenerationRequest(
            id=f"{call_id}/{index}",
            tokens=tokens,
            max_tokens=1,
            sampling=Sampling(
                seed=0, temperature=0.0, scored=(yes, no), logit_bias={yes: _FORCED, no: _FORCED}
            ),
            top_logprobs=0,
            cache_namespace=cache_namespace(salt=None, key=key),
            adapter=context.chosen.adapter,
            **origin,
        )
        for index, tokens in enumerate(prompts)
    )
    return schema.YesOrNo(requests=requests, yes=yes, no=no)


def _joined(pairs: _Pairs, body: _ScoredBody, context: ResolveContext) -> tuple[_Tokens, ...]:
    reader = InputReader.of(context, body.cut)
    template = context.chosen.model.rerank
    if template is not None:
        return tuple(_Prompts(reader, template).prompts_of(pairs))
    read = reader.plain((*pairs.queries, *pairs.texts), (*pairs.query_params, *pairs.params))
    queries, texts = read[: len(pairs.queries)], read[len(pairs.queries) :]
    alike = queries * len(texts) if len(queries) == 1 else queries
    each = zip(alike, texts, pairs.params, strict=True)
    return tuple(reader.pair(query, text, param) for query, text, param in each)


_WAYS = {ModelKind.EMBEDS: _by_cosine, ModelKind.RERANKS: _by_scores, ModelKind.GENERATES: _by_yes_or_no}
