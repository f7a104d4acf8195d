"""A body of `/v1/embeddings` becomes one `EmbedRequest`."""

from __future__ import annotations

import secrets

from openai_cpu_server.api.access.clients import Client, account_of
from openai_cpu_server.api.calls.call import Asking
from openai_cpu_server.api.calls.pooling import PoolingCall, Writer
from openai_cpu_server.api.render.pooling import EmbeddingWriter
from openai_cpu_server.api.resolve.inputs import InputReader, Tokens
from openai_cpu_server.api.schemas.pooling import EmbeddingBody, PoolingBody
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.errors import InvalidRequest


def resolve_embeddings(body: EmbeddingBody, asking: Asking) -> PoolingCall:
    """Raises InvalidRequest, InputTooLong."""
    dimensions = _dimensions(body, asking.info.embedding_size)
    inputs = _inputs(body, InputReader.of(asking, truncate=body.truncate))
    request = embed_request(inputs, body, asking, id_prefix="embd-")
    writer = EmbeddingWriter(
        model=asking.chosen.name,
        prompt_tokens=request.num_tokens,
        is_base64=body.encoding_format == "base64",
        dimensions=dimensions,
    )
    return embed_call(request, body, asking, writer)


def embed_call(request: EmbedRequest, body: PoolingBody, asking: Asking, render: Writer) -> PoolingCall:
    return PoolingCall(
        id=request.id,
        work=request,
        num_inputs=len(request.inputs),
        prompt_tokens=request.num_tokens,
        priority=request.priority,
        timeout_s=body.timeout,
        render=render,
    )


def embed_request(
    inputs: tuple[Tokens, ...], body: PoolingBody, asking: Asking, *, id_prefix: str
) -> EmbedRequest:
    sender = asking.sender
    return EmbedRequest(
        id=id_prefix + secrets.token_hex(12),
        inputs=inputs,
        priority=sender.priority(field=body.priority, tier=body.service_tier),
        client=Client.of(sender.identity, body.user or body.safety_identifier).label,
        account=account_of(sender.identity),
        group=Client.group_of(sender.identity),
        route=id_prefix.removesuffix("-"),
    )


def _inputs(body: EmbeddingBody, reader: InputReader) -> tuple[Tokens, ...]:
    """Texts are tokenised, token ids are checked."""
    given = body.input
    if isinstance(given, str):
        return reader.texts([given], ["input"])
    if isinstance(given[0], int):
        return (reader.ids([token for token in given if isinstance(token, int)], "input"),)
    params = [f"input[{index}]" for index in range(len(given))]
    if isinstance(given[0], str):
        return reader.texts([item for item in given if isinstance(item, str)], params)
    ids = [item for item in given if isinstance(item, list)]
    return tuple(reader.ids(*each) for each in zip(ids, params, strict=True))


def _dimensions(body: EmbeddingBody, size: int) -> int | None:
    if body.dimensions is not None and body.dimensions > size:
        message = f"Invalid value for 'dimensions': this model's vectors have {size}."
        raise InvalidRequest(message, param="dimensions", code="invalid_value")
    return body.dimensions
