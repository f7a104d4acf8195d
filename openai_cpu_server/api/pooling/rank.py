"""Conversion of a query and documents to scored work: vectors, pairs, or yes-or-no prompts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from openai_cpu_server.api.generation.call import ResolveContext
from openai_cpu_server.api.pooling.body import (
    ClassifyBody,
    PoolingCall,
    RerankBody,
    Rows,
    ScoreBody,
    Writer,
    YesOrNo,
)
from openai_cpu_server.api.pooling.embed import InputReader, Tokens, asked_by, embed_request, read_inputs
from openai_cpu_server.api.pooling.render import (
    ClassesWriter,
    RankingWriter,
    Scores,
    ScoresWriter,
    TextRankingWriter,
    cosines,
    first_numbers,
    probabilities,
)
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.errors import InputTooLong, InvalidRequest, missing, wrong
from openai_cpu_server.prompt.chat_prompts import RerankPrompts

_PREFIX = "rerank-"
_SOFTMAX = frozenset({"qwen3", "qwen3vl"})
"""Rerankers whose scores llama.cpp already turns into probabilities."""
_FORCED = 100.0
"""Added to the logits of yes and no against control tokens, after the log-probabilities are taken."""
_HALF = "\N{REPLACEMENT CHARACTER}"
"""Remainder of a character that was cut."""


class _Pairs(NamedTuple):
    """One query with all texts, or pairs of equal index."""

    queries: tuple[str, ...]
    texts: tuple[str, ...]
    query_at: str
    texts_at: str

    @property
    def params(self) -> list[str]:
        return [f"{self.texts_at}[{index}]" for index in range(len(self.texts))]

    @property
    def query_params(self) -> list[str]:
        if len(self.queries) == 1:
            return [self.query_at]
        return [f"{self.query_at}[{index}]" for index in range(len(self.queries))]

    def by_query(self) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
        if len(self.queries) == 1:
            yield self.queries[0], self.texts, self.params
            return
        for query, text, param in zip(self.queries, self.texts, self.params, strict=True):
            yield query, [text], [param]


class _Scoring(NamedTuple):
    work: EmbedRequest | YesOrNo
    scores_of: Callable[[Rows], Scores]


def resolve_ranking(body: RerankBody, asking: ResolveContext) -> PoolingCall:
    """Return the call for the model's kind. Raises InvalidRequest, InputTooLong, TemplateFailed."""
    name, documents = _documents(body)
    pairs = _Pairs((body.query,), documents, "query", name)
    work, scores_of = _WAYS[asking.chosen.model.kind](pairs, body, asking)
    writer: Writer
    if body.texts is not None:
        writer = TextRankingWriter(
            top_n=body.top_n, texts=documents if body.return_text else None, scores_of=scores_of
        )
    else:
        writer = RankingWriter(
            id=work.id,
            model=asking.chosen.name,
            prompt_tokens=work.num_tokens,
            top_n=body.top_n,
            documents=None if body.return_documents is False else documents,
            scores_of=scores_of,
        )
    return PoolingCall(work=work, timeout_s=body.timeout, render=writer)


def _documents(body: RerankBody) -> tuple[str, tuple[str, ...]]:
    if (body.documents is None) == (body.texts is None):
        raise missing("documents") if body.documents is None else wrong(_ONE_OF, "texts")
    if strange := _of_the_other(body):
        raise wrong(f"'{strange}' does not go with '{'texts' if body.texts else 'documents'}'.", strange)
    if body.texts is not None:
        return "texts", tuple(body.texts)
    return "documents", tuple(item if isinstance(item, str) else item.text for item in body.documents or ())


_ONE_OF = "Give exactly one of 'documents' and 'texts'."


def _of_the_other(body: RerankBody) -> str | None:
    names = ("return_text",) if body.texts is None else ("return_documents",)
    return next((name for name in names if getattr(body, name) is not None), None)


def resolve_scores(body: ScoreBody, asking: ResolveContext) -> PoolingCall:
    """Return the call. Raises as `resolve_ranking`."""
    first, second = _listed(body.text_1), _listed(body.text_2)
    if len(first) not in (1, len(second)):
        raise wrong("'text_1' is one text, or as many as 'text_2' has.", "text_1")
    pairs = _Pairs(first, second, "text_1", "text_2")
    work, scores_of = _WAYS[asking.chosen.model.kind](pairs, body, asking)
    writer = ScoresWriter(
        id=work.id, model=asking.chosen.name, prompt_tokens=work.num_tokens, scores_of=scores_of
    )
    return PoolingCall(work=work, timeout_s=body.timeout, render=writer)


def resolve_classes(body: ClassifyBody, asking: ResolveContext) -> PoolingCall:
    """Return the call. Raises as `resolve_ranking`."""
    inputs = read_inputs(body.input, InputReader.of(asking, body.cut), "input")
    request = embed_request(inputs, body, asking, id_prefix="classify-")
    writer = ClassesWriter(
        id=request.id,
        model=asking.chosen.name,
        prompt_tokens=request.num_tokens,
        labels=asking.info.labels,
        # llama.cpp has made them probabilities already.
        activates=body.use_activation is not False and asking.info.architecture not in _SOFTMAX,
    )
    return PoolingCall(work=request, timeout_s=body.timeout, render=writer)


def _listed(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _by_cosine(pairs: _Pairs, body: RerankBody | ScoreBody, asking: ResolveContext) -> _Scoring:
    reader = InputReader.of(asking, body.cut)
    read = reader.texts((*pairs.queries, *pairs.texts), (*pairs.query_params, *pairs.params))
    request = embed_request(read, body, asking, id_prefix=_PREFIX)
    return _Scoring(request, partial(cosines, num_queries=len(pairs.queries)))


def _by_scores(pairs: _Pairs, body: RerankBody | ScoreBody, asking: ResolveContext) -> _Scoring:
    request = embed_request(_joined(pairs, body, asking), body, asking, id_prefix=_PREFIX)
    if asking.info.embedding_size > 1 and asking.info.architecture not in _SOFTMAX:
        message = (
            f"This model tells {asking.info.embedding_size} classes apart and scores no pairs: see /classify."
        )
        raise InvalidRequest(message, param="model", code="wrong_model_kind")
    squeezes = body.activates and asking.info.architecture not in _SOFTMAX
    return _Scoring(request, probabilities if squeezes else first_numbers)


def _by_yes_or_no(pairs: _Pairs, body: RerankBody | ScoreBody, asking: ResolveContext) -> _Scoring:
    """The prompts of a query share a prefix, which is computed once."""
    model = asking.chosen.model
    assert model.rerank is not None, "a model without one cannot rerank"
    if len(pairs.texts) > asking.options.max_sequences:
        message = f"{len(pairs.texts)} texts: one call may have {asking.options.max_sequences} sequences."
        raise wrong(message, pairs.texts_at)
    reader = InputReader.of(asking, body.cut, room=1)
    prompts = _Prompts(reader, model.rerank).about(pairs)
    work = _questions(prompts, _answers(reader, model.rerank), body, asking)
    return _Scoring(work, probabilities if body.activates else first_numbers)


class _Prompts:
    def __init__(self, reader: InputReader, asked: RerankPrompts) -> None:
        self._reader = reader
        self._asked = asked

    def about(self, pairs: _Pairs) -> list[Tokens]:
        """Return the prompts. Raises InputTooLong, with `truncate` only for more than the document."""
        return [tokens for asked in pairs.by_query() for tokens in self._about(*asked)]

    def _about(self, query: str, documents: Sequence[str], params: Sequence[str]) -> list[Tokens]:
        readable = [self._reader.readable(*each) for each in zip(documents, params, strict=True)]
        prompts = self._asked.prompts(query, readable)
        return [
            tokens if len(tokens) <= self._reader.limit else self._cut(tokens, query, document, param)
            for tokens, document, param in zip(prompts, readable, params, strict=True)
        ]

    def _cut(self, tokens: Tokens, query: str, document: str, param: str) -> Tokens:
        limit = self._reader.limit
        (pieces,) = self._reader.plain([document], [param]) if self._reader.truncate else ([],)
        num_kept = len(pieces)
        while len(tokens) > limit:
            if not num_kept:
                raise InputTooLong(tokens=len(tokens), limit=limit, param=param)
            num_kept = max(0, num_kept - (len(tokens) - limit))
            kept = self._reader.tokenizer.decode(self._reader.kept(pieces, num_kept))
            (tokens,) = self._asked.prompts(query, [kept.removesuffix(_HALF).removeprefix(_HALF)])
        return tokens


def _answers(reader: InputReader, asked: RerankPrompts) -> tuple[int, int]:
    """The first tokens of yes and no must differ. Raises InvalidRequest."""
    yes, no = (tokens[:1] for tokens in reader.plain((asked.yes, asked.no), ("model", "model")))
    if yes == no:
        message = "This model cannot rerank: its tokens for yes and no begin alike."
        raise InvalidRequest(message, param="model", code="unsupported_parameter")
    return yes[0], no[0]


def _questions(
    prompts: list[Tokens], answers: tuple[int, int], body: RerankBody | ScoreBody, asking: ResolveContext
) -> YesOrNo:
    sender, call_id = asking.sender, _PREFIX + secrets.token_hex(12)
    key = sender.identity.digest if asking.options.isolate_by_key else None
    yes, no = answers
    told = asked_by(body, sender, _PREFIX)
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
            adapter=asking.chosen.adapter,
            **told,
        )
        for index, tokens in enumerate(prompts)
    )
    return YesOrNo(requests=requests, yes=yes, no=no)


def _joined(pairs: _Pairs, body: RerankBody | ScoreBody, asking: ResolveContext) -> tuple[Tokens, ...]:
    reader = InputReader.of(asking, body.cut)
    asked = asking.chosen.model.rerank
    if asked is not None:
        return tuple(_Prompts(reader, asked).about(pairs))
    read = reader.plain((*pairs.queries, *pairs.texts), (*pairs.query_params, *pairs.params))
    queries, texts = read[: len(pairs.queries)], read[len(pairs.queries) :]
    alike = queries * len(texts) if len(queries) == 1 else queries
    each = zip(alike, texts, pairs.params, strict=True)
    return tuple(reader.pair(query, text, param) for query, text, param in each)


_WAYS = {ModelKind.EMBEDS: _by_cosine, ModelKind.RERANKS: _by_scores, ModelKind.GENERATES: _by_yes_or_no}
