"""A query and its documents become what a model scores: vectors, pairs, or questions to answer yes or no."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from openai_cpu_server.api.asking.call import ModelContext
from openai_cpu_server.api.pooling.body import PoolingCall, RerankBody, Rows, YesOrNo
from openai_cpu_server.api.pooling.embed import InputReader, Tokens, asked_by, embed_request
from openai_cpu_server.api.pooling.render import RankingWriter, Scores, cosines, first_numbers, probabilities
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.errors import InputTooLong, InvalidRequest, wrong
from openai_cpu_server.prompt.rerank_template import RerankPrompts

_PREFIX = "rerank-"
_SOFTMAX = frozenset({"qwen3", "qwen3vl"})
"""llama.cpp makes probabilities of these rerankers' numbers itself."""
_FORCED = 100.0
"""This much is added to the logits of yes and no, so that one of them is sampled, and no control token.
Log-probabilities are told as they were before."""
_HALF = "\N{REPLACEMENT CHARACTER}"
"""What is left of a character whose tokens were cut apart."""


def resolve_ranking(body: RerankBody, asking: ModelContext) -> PoolingCall:
    """What the model is decides how it ranks. Raises InvalidRequest, InputTooLong, TemplateFailed."""
    return _WAYS[asking.chosen.model.kind](body, asking)


def _by_cosine(body: RerankBody, asking: ModelContext) -> PoolingCall:
    """Ranks by a model that embeds: query and documents become vectors."""
    reader = InputReader.of(asking, truncate=body.truncate)
    documents = _texts(body)
    read = reader.texts((body.query, *documents), ("query", *_params(documents)))
    request = embed_request(read, body, asking, id_prefix=_PREFIX)
    return _call(request, body, documents, asking, cosines)


def _by_scores(body: RerankBody, asking: ModelContext) -> PoolingCall:
    """Ranks by a cross-encoder: each pair of query and document gets a score."""
    documents = _texts(body)
    request = embed_request(_pairs(body, documents, asking), body, asking, id_prefix=_PREFIX)
    squeezes = body.use_activation is not False and asking.info.architecture not in _SOFTMAX
    return _call(request, body, documents, asking, probabilities if squeezes else first_numbers)


def _by_yes_or_no(body: RerankBody, asking: ModelContext) -> PoolingCall:
    """Ranks by a model that generates: asked about each document, its first token is scored.

    The prompts begin alike, so the query is computed once.
    """
    model, documents = asking.chosen.model, _texts(body)
    assert model.rerank is not None, "a model without one cannot rerank"
    if len(documents) > asking.options.max_sequences:
        message = f"{len(documents)} documents: one call may have {asking.options.max_sequences} sequences."
        raise wrong(message, "documents")
    reader = InputReader.of(asking, truncate=body.truncate, room=1)
    prompts = _Prompts(reader, model.rerank).about(body.query, documents)
    work = _questions(prompts, _answers(reader, model.rerank), body, asking)
    return _call(
        work, body, documents, asking, first_numbers if body.use_activation is False else probabilities
    )


def _call(
    work: EmbedRequest | YesOrNo,
    body: RerankBody,
    documents: tuple[str, ...],
    asking: ModelContext,
    scores_of: Callable[[Rows], Scores],
) -> PoolingCall:
    writer = RankingWriter(
        id=work.id,
        model=asking.chosen.name,
        prompt_tokens=work.num_tokens,
        top_n=body.top_n,
        documents=None if body.return_documents is False else documents,
        scores_of=scores_of,
    )
    return PoolingCall(work=work, timeout_s=body.timeout, render=writer)


class _Prompts:
    def __init__(self, reader: InputReader, asked: RerankPrompts) -> None:
        self._reader = reader
        self._asked = asked

    def about(self, query: str, documents: Sequence[str]) -> list[Tokens]:
        """Raises InputTooLong; with `truncate` only where a document is not what is too long."""
        params = _params(documents)
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
            kept = self._reader.tokenizer.decode(pieces[:num_kept])
            (tokens,) = self._asked.prompts(query, [kept.removesuffix(_HALF)])
        return tokens


def _answers(reader: InputReader, asked: RerankPrompts) -> tuple[int, int]:
    """The first tokens of yes and no. Raises InvalidRequest if the vocabulary cannot tell them apart so."""
    yes, no = (tokens[:1] for tokens in reader.plain((asked.yes, asked.no), ("model", "model")))
    if yes == no:
        message = "This model cannot rerank: its tokens for yes and no begin alike."
        raise InvalidRequest(message, param="model", code="unsupported_parameter")
    return yes[0], no[0]


def _questions(
    prompts: list[Tokens], answers: tuple[int, int], body: RerankBody, asking: ModelContext
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


def _pairs(body: RerankBody, documents: tuple[str, ...], asking: ModelContext) -> tuple[Tokens, ...]:
    """By the file's own template for reranking, else joined by the tokenizer's separators."""
    reader = InputReader.of(asking, truncate=body.truncate)
    asked, params = asking.chosen.model.rerank, _params(documents)
    if asked is not None:
        return tuple(_Prompts(reader, asked).about(body.query, documents))
    query, *texts = reader.plain((body.query, *documents), ("query", *params))
    return tuple(reader.pair(query, text, param) for text, param in zip(texts, params, strict=True))


def _params(documents: Sequence[str]) -> list[str]:
    return [f"documents[{index}]" for index in range(len(documents))]


def _texts(body: RerankBody) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else item.text for item in body.documents)


_WAYS = {ModelKind.EMBEDS: _by_cosine, ModelKind.RERANKS: _by_scores, ModelKind.GENERATES: _by_yes_or_no}
