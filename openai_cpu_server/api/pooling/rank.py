"""A query and its documents become what a model scores: vectors, pairs, or questions to answer yes or no."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from openai_cpu_server.api.asking.call import ModelContext
from openai_cpu_server.api.pooling.body import PoolingCall, RerankBody, YesOrNo
from openai_cpu_server.api.pooling.embed import InputReader, Tokens, embed_call, embed_request
from openai_cpu_server.api.pooling.render import CosineWriter, ScoreWriter
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.errors import InputTooLong, InvalidRequest, wrong
from openai_cpu_server.http.clients import Client, account_of
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
    """Of a model that embeds: query and documents become vectors."""
    reader = InputReader.of(asking, truncate=body.truncate)
    documents = _texts(body)
    read = reader.texts((body.query, *documents), ("query", *_params(documents)))
    request = embed_request(read, body, asking, id_prefix=_PREFIX)
    writer = CosineWriter(
        id=request.id,
        model=asking.chosen.name,
        prompt_tokens=request.num_tokens,
        top_n=body.top_n,
        documents=_returned(body, documents),
    )
    return embed_call(request, body, asking, writer)


def _by_scores(body: RerankBody, asking: ModelContext) -> PoolingCall:
    """Of a cross-encoder: each pair of query and document gets a score."""
    documents = _texts(body)
    request = embed_request(_pairs(body, documents, asking), body, asking, id_prefix=_PREFIX)
    writer = ScoreWriter(
        id=request.id,
        model=asking.chosen.name,
        prompt_tokens=request.num_tokens,
        top_n=body.top_n,
        documents=_returned(body, documents),
        squeezes=body.use_activation is not False and asking.info.architecture not in _SOFTMAX,
    )
    return embed_call(request, body, asking, writer)


def _by_yes_or_no(body: RerankBody, asking: ModelContext) -> PoolingCall:
    """Of a model that generates: it is asked about each document, and its first token is scored.

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
    call_id = work.requests[0].id.partition("/")[0]
    num_tokens = sum(map(len, prompts))
    return PoolingCall(
        id=call_id,
        work=work,
        num_inputs=len(prompts),
        prompt_tokens=num_tokens,
        priority=work.requests[0].priority,
        timeout_s=body.timeout,
        render=ScoreWriter(
            id=call_id,
            model=asking.chosen.name,
            prompt_tokens=num_tokens,
            top_n=body.top_n,
            documents=_returned(body, documents),
            squeezes=body.use_activation is not False,
        ),
    )


class _Prompts:
    """The prompts of a template."""

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
    requests = tuple(
        GenerationRequest(
            id=f"{call_id}/{index}",
            tokens=tokens,
            max_tokens=1,
            sampling=Sampling(
                seed=0, temperature=0.0, scored=(yes, no), logit_bias={yes: _FORCED, no: _FORCED}
            ),
            priority=sender.priority(field=body.priority, tier=body.service_tier),
            top_logprobs=0,
            client=Client.of(sender.identity, body.user or body.safety_identifier).label,
            account=account_of(sender.identity),
            group=Client.group_of(sender.identity),
            route=_PREFIX.removesuffix("-"),
            cache_namespace=cache_namespace(salt=None, key=key),
            adapter=asking.chosen.adapter,
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


def _returned(body: RerankBody, documents: tuple[str, ...]) -> tuple[str, ...] | None:
    return None if body.return_documents is False else documents


_WAYS = {
    ModelKind.EMBEDS: _by_cosine,
    ModelKind.RERANKS: _by_scores,
    ModelKind.GENERATES: _by_yes_or_no,
}
