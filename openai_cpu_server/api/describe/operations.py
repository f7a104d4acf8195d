"""What each route takes and gives, for `/openapi.json`. A test compares this table with the routes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openai_cpu_server.api.access.access import (
    ADMIN,
    CALLS,
    INFERENCE,
    METRICS,
    OPEN,
    PROBES,
    REQUESTS,
    UPLOADS,
    WORK,
    Access,
    Callers,
)
from openai_cpu_server.api.error_shapes import MessagesError
from openai_cpu_server.api.errors import CLIENT_GONE, ErrorObject
from openai_cpu_server.api.events.listener import PERIODS_S
from openai_cpu_server.api.events.objects import EVENTS
from openai_cpu_server.api.messages.as_ask import TokensCounted
from openai_cpu_server.api.render.anthropic import AnswerMessage
from openai_cpu_server.api.render.chat import ChatCompletion
from openai_cpu_server.api.render.completion import TextCompletion
from openai_cpu_server.api.render.generate import Generated, GeneratedBatch
from openai_cpu_server.api.render.pooling import EmbeddingList, Reranked
from openai_cpu_server.api.render.responses.objects import (
    ItemList,
    ResponseDeleted,
    ResponseObject,
)
from openai_cpu_server.api.routes.adapters import AdapterCard, AdapterDeleted, AdapterList
from openai_cpu_server.api.routes.batch_jobs import BatchList, BatchObject
from openai_cpu_server.api.routes.cache import ONLY, CacheStats
from openai_cpu_server.api.routes.counting import InputTokens
from openai_cpu_server.api.routes.files import FileDeleted, FileList, FileObject
from openai_cpu_server.api.routes.health import HealthReport, Version
from openai_cpu_server.api.routes.models import ModelCard, ModelList
from openai_cpu_server.api.routes.requests import Cancelled, RequestList
from openai_cpu_server.api.routes.stats import Stats
from openai_cpu_server.api.routes.tokens import Detokenized, Tokenized
from openai_cpu_server.api.routes.usage import UsageList
from openai_cpu_server.api.schemas.adapters import AdapterBody
from openai_cpu_server.api.schemas.anthropic import CountBody, MessagesBody
from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.batch_jobs import BatchBody
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.api.schemas.generate import GenerateBatchBody, GenerateBody
from openai_cpu_server.api.schemas.pooling import EmbeddingBody, RerankBody
from openai_cpu_server.api.schemas.responses import InputTokensBody, ResponsesBody
from openai_cpu_server.api.schemas.tokens import DetokenizeBody, TokenizeBody
from openai_cpu_server.http.replies import ORDERS
from openai_cpu_server.jobs.store.usage import GROUPS

JsonSchema = dict[str, object]

_CHUNKS = "With `stream`: `data: ` and a chunk as JSON, an empty line, and so on; at the end `data: [DONE]`."
_GENERATION = (404, 408, 429, CLIENT_GONE, 500, 503)
_PAGE: Mapping[str, JsonSchema] = {
    "limit": {"type": "integer", "minimum": 1},
    "after": {"type": "string", "description": "id of the last object that is known already"},
}
_UPLOAD: JsonSchema = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_VERSION = msgspec.structs.replace(INFERENCE, callers=Callers.GATEWAYS)
_GATEWAY_METRICS = msgspec.structs.replace(METRICS, callers=Callers.GATEWAYS)
_MESSAGE_EVENTS = (
    "With `stream`: `event: `, its name, `data: ` and an object whose `type` is that name, an empty line,"
    " and so on; the last one is `message_stop`."
)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    tag: str
    access: Access
    """What its route asks of whoever comes."""
    body: type[Body] | None = None
    form: JsonSchema | None = None
    """The schema of a multipart body, in place of a JSON one."""
    query: Mapping[str, JsonSchema] = {}
    answer: type[msgspec.Struct] | None = None
    media: str = "application/json"
    """The media type of an answer that has no model."""
    status: int = 200
    streams: bool = False
    stream_form: str = _CHUNKS
    """What a stream is made of."""
    events: tuple[type[msgspec.Struct], ...] = ()
    """What the events of a stream hold, where the answer is one in any case."""
    error: type[msgspec.Struct] = ErrorObject
    errors: tuple[int, ...] = ()
    """Statuses beside those that follow from the body, the key and the path."""


_RERANKING = Operation(
    summary="Documents by their relevance to a query",
    tag="Embeddings",
    access=CALLS,
    body=RerankBody,
    answer=Reranked,
    errors=_GENERATION,
)
_GENERATE = Operation(
    summary="Answer a prompt, under an older server's name",
    tag="Compatibility",
    access=CALLS,
    body=GenerateBody,
    answer=Generated,
    streams=True,
    stream_form="With `stream`: `data: ` and an object with a `text`, and so on; the last has the `metrics`.",
    errors=_GENERATION,
)
OPERATIONS: Mapping[str, Operation] = {
    "POST /v1/chat/completions": Operation(
        summary="Answer a conversation, whole or as server-sent events",
        tag="Generation",
        access=CALLS,
        body=ChatBody,
        answer=ChatCompletion,
        streams=True,
        errors=_GENERATION,
    ),
    "WEBSOCKET /v1/chat/completions": Operation(
        summary="The same over a WebSocket: one JSON object a message, many requests at once",
        tag="Generation",
        access=INFERENCE,
    ),
    "POST /v1/completions": Operation(
        summary="Continue a text, whole or as server-sent events",
        tag="Generation",
        access=CALLS,
        body=CompletionBody,
        answer=TextCompletion,
        streams=True,
        errors=_GENERATION,
    ),
    "POST /v1/responses": Operation(
        summary="Make a response: whole, as server-sent events, or in the background",
        tag="Responses",
        access=CALLS,
        body=ResponsesBody,
        answer=ResponseObject,
        streams=True,
        errors=_GENERATION,
    ),
    "WEBSOCKET /v1/responses": Operation(
        summary="OpenAI's WebSocket mode: response.create in, the events of a stream out",
        tag="Responses",
        access=INFERENCE,
    ),
    "POST /v1/responses/input_tokens": Operation(
        summary="How many tokens a response's prompt would have",
        tag="Responses",
        access=WORK,
        body=InputTokensBody,
        answer=InputTokens,
        errors=(404, 503),
    ),
    "GET /v1/responses/{id}": Operation(
        summary="A stored response, or the events of one that was made in the background",
        tag="Responses",
        access=REQUESTS,
        query={
            "stream": {"type": "boolean", "default": False},
            "starting_after": {"type": "integer", "description": "number of the last event that is known"},
            "include[]": {"type": "string", "description": "changes nothing: all that there is is shown"},
            "include_obfuscation": {"type": "boolean", "description": "changes nothing"},
        },
        answer=ResponseObject,
        streams=True,
        errors=(400,),
    ),
    "DELETE /v1/responses/{id}": Operation(
        summary="Delete it", tag="Responses", access=REQUESTS, answer=ResponseDeleted
    ),
    "POST /v1/responses/{id}/cancel": Operation(
        summary="End one that is made in the background",
        tag="Responses",
        access=INFERENCE,
        answer=ResponseObject,
        errors=(400,),
    ),
    "GET /v1/responses/{id}/input_items": Operation(
        summary="What went into it",
        tag="Responses",
        access=REQUESTS,
        query={**_PAGE, "order": {"enum": list(ORDERS)}, "include[]": {"type": "string"}},
        answer=ItemList,
    ),
    "POST /v1/messages": Operation(
        summary="Answer a conversation as Anthropic's API does, whole or as server-sent events",
        tag="Generation",
        access=CALLS,
        body=MessagesBody,
        answer=AnswerMessage,
        streams=True,
        stream_form=_MESSAGE_EVENTS,
        error=MessagesError,
        errors=_GENERATION,
    ),
    "POST /v1/messages/count_tokens": Operation(
        summary="The tokens of such a conversation",
        tag="Tokens",
        access=WORK,
        body=CountBody,
        answer=TokensCounted,
        error=MessagesError,
        errors=(404,),
    ),
    "POST /v1/chat/completions/input_tokens": Operation(
        summary="The tokens of a chat's conversation",
        tag="Tokens",
        access=WORK,
        body=ChatBody,
        answer=InputTokens,
        errors=(404,),
    ),
    "POST /v1/embeddings": Operation(
        summary="Texts as vectors",
        tag="Embeddings",
        access=CALLS,
        body=EmbeddingBody,
        answer=EmbeddingList,
        errors=_GENERATION,
    ),
    **dict.fromkeys(("POST /v1/rerank", "POST /v2/rerank", "POST /rerank"), _RERANKING),
    "GET /v1/models": Operation(
        summary="The names that are served", tag="Models", access=INFERENCE, answer=ModelList
    ),
    "GET /v1/models/{id}": Operation(summary="One of them", tag="Models", access=INFERENCE, answer=ModelCard),
    "POST /v1/adapters": Operation(
        summary="Load a LoRA adapter, or put it in the place of one of the same name",
        tag="Models",
        access=ADMIN,
        body=AdapterBody,
        answer=AdapterCard,
        errors=(404,),
    ),
    "GET /v1/adapters": Operation(
        summary="Adapters of all models", tag="Models", access=ADMIN, answer=AdapterList
    ),
    "DELETE /v1/adapters/{id}": Operation(
        summary="Unload one", tag="Models", access=ADMIN, answer=AdapterDeleted
    ),
    "POST /v1/models/{id}/load": Operation(
        summary="Load it into memory, or anew if its file has changed; the answer comes when that is done",
        tag="Models",
        access=ADMIN,
        query={
            "wait": {"type": "boolean", "default": True, "description": "false: the answer is 202, at once"},
            "reload": {"type": "boolean", "default": False, "description": "true: also an unchanged file"},
        },
        answer=ModelCard,
        errors=(503,),
    ),
    "POST /v1/models/{id}/unload": Operation(
        summary="Free its memory, if it has no requests; the next one loads it again",
        tag="Models",
        access=ADMIN,
        answer=ModelCard,
        errors=(409,),
    ),
    "POST /tokenize": Operation(
        summary="Text or messages as tokens",
        tag="Tokens",
        access=WORK,
        body=TokenizeBody,
        answer=Tokenized,
        errors=(404,),
    ),
    "POST /detokenize": Operation(
        summary="Tokens as text",
        tag="Tokens",
        access=WORK,
        body=DetokenizeBody,
        answer=Detokenized,
        errors=(404,),
    ),
    "GET /v1/requests": Operation(
        summary="Requests that run or wait", tag="Requests", access=INFERENCE, answer=RequestList
    ),
    "DELETE /v1/requests/{id}": Operation(
        summary="End one", tag="Requests", access=INFERENCE, answer=Cancelled
    ),
    "DELETE /v1/cache": Operation(
        summary="Empty the caches of prompts and of answers",
        tag="Cache",
        access=ADMIN,
        query={"only": {"enum": list(ONLY), "description": "this one alone"}},
        status=204,
        errors=(400,),
    ),
    "GET /v1/cache/stats": Operation(
        summary="Both tiers of KV memory, and the cache of answers",
        tag="Cache",
        access=ADMIN,
        answer=CacheStats,
        errors=(503,),
    ),
    "POST /v1/files": Operation(
        summary="Upload the input of a batch",
        tag="Batches",
        access=UPLOADS,
        form=_UPLOAD,
        answer=FileObject,
        errors=(400,),
    ),
    "GET /v1/files": Operation(
        summary="Files",
        tag="Batches",
        access=INFERENCE,
        query={**_PAGE, "order": {"enum": list(ORDERS)}, "purpose": {"type": "string"}},
        answer=FileList,
        errors=(404,),
    ),
    "GET /v1/files/{id}": Operation(summary="One file", tag="Batches", access=INFERENCE, answer=FileObject),
    "DELETE /v1/files/{id}": Operation(
        summary="Delete it", tag="Batches", access=INFERENCE, answer=FileDeleted, errors=(409,)
    ),
    "GET /v1/files/{id}/content": Operation(
        summary="Its bytes", tag="Batches", access=INFERENCE, media="application/octet-stream"
    ),
    "POST /v1/batches": Operation(
        summary="Run a file's requests when nobody else needs the machine",
        tag="Batches",
        access=INFERENCE,
        body=BatchBody,
        answer=BatchObject,
        errors=(404,),
    ),
    "GET /v1/batches": Operation(
        summary="Batches", tag="Batches", access=INFERENCE, query=_PAGE, answer=BatchList, errors=(404,)
    ),
    "GET /v1/batches/{id}": Operation(
        summary="One batch", tag="Batches", access=INFERENCE, answer=BatchObject
    ),
    "POST /v1/batches/{id}/cancel": Operation(
        summary="End it", tag="Batches", access=INFERENCE, answer=BatchObject, errors=(409,)
    ),
    "GET /v1/usage": Operation(
        summary="What keys have used, by day, key and model",
        tag="Operation",
        access=INFERENCE,
        query={
            "start": {"type": "string", "format": "date", "description": "the first day, in UTC"},
            "end": {"type": "string", "format": "date", "description": "the last day"},
            "model": {"type": "string", "description": "only this one; may be given several times"},
            "key": {"type": "string", "description": "only the key of this name; may be given several times"},
            "group_by": {
                "type": "string",
                "default": ",".join(GROUPS),
                "description": "the rest is added up",
            },
            **_PAGE,
            "order": {"enum": list(ORDERS), "default": "desc"},
        },
        answer=UsageList,
        errors=(503,),
    ),
    **dict.fromkeys(("POST /generate", "POST /v1/generate"), _GENERATE),
    "POST /v1/generate/batch": Operation(
        summary="Several of them at once; one that fails fails alone",
        tag="Compatibility",
        access=INFERENCE,
        body=GenerateBatchBody,
        answer=GeneratedBatch,
        errors=(429, CLIENT_GONE),
    ),
    "GET /v1/model/info": Operation(
        summary="The model that is asked when none is named, or the one named",
        tag="Compatibility",
        access=INFERENCE,
        query={"model": {"type": "string"}},
        answer=ModelCard,
        errors=(404,),
    ),
    "GET /health": Operation(
        summary="The process lives", tag="Operation", access=PROBES, answer=HealthReport
    ),
    "GET /ready": Operation(
        summary="It can generate", tag="Operation", access=PROBES, answer=HealthReport, errors=(503,)
    ),
    "GET /version": Operation(
        summary="The version of this server", tag="Operation", access=_VERSION, answer=Version
    ),
    "GET /metrics": Operation(
        summary="For Prometheus", tag="Operation", access=_GATEWAY_METRICS, media="text/plain"
    ),
    "GET /metrics/gateway": Operation(
        summary="What gateways in front of several servers choose by",
        tag="Operation",
        access=_GATEWAY_METRICS,
        media="text/plain",
    ),
    "GET /v1/stats": Operation(summary="The same at a glance", tag="Operation", access=METRICS, answer=Stats),
    "GET /v1/events": Operation(
        summary="What the scheduler does, live, as server-sent events",
        tag="Operation",
        access=INFERENCE,
        query={
            "types": {
                "type": "string",
                "description": "only these, with commas between them: " + ", ".join(PERIODS_S),
            }
        },
        media="text/event-stream",
        events=EVENTS,
    ),
    "GET /": Operation(
        summary="The page for browsers: chat, control room", tag="Page", access=OPEN, media="text/html"
    ),
    "GET /page/{version}/{name}": Operation(
        summary="Its scripts and styles", tag="Page", access=OPEN, media="text/javascript"
    ),
    "GET /openapi.json": Operation(
        summary="This document",
        tag="Operation",
        access=OPEN,
    ),
}
"""The key is method and path, as clients write them."""
