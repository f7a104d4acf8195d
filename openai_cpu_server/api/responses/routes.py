"""The routes of Responses: made, stored, cancelled, over a WebSocket."""

from __future__ import annotations

from functools import partial

from openai_cpu_server.api.access.access import CALLS, INFERENCE, REQUESTS, WORK
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.api.render.responses.objects import ItemList, ResponseDeleted, ResponseObject
from openai_cpu_server.api.responses.socket import ResponsesExchange
from openai_cpu_server.api.routes.counting import InputTokens
from openai_cpu_server.api.routes.responses.background import Background
from openai_cpu_server.api.routes.responses.create import ResponsesRoute
from openai_cpu_server.api.routes.responses.making import Maker
from openai_cpu_server.api.routes.responses.stored import StoredResponses
from openai_cpu_server.api.routes.responses.turns import TurnReader
from openai_cpu_server.api.schemas.responses import InputTokensBody, ResponsesBody
from openai_cpu_server.http.replies import ORDERS, PAGE_QUERY
from openai_cpu_server.http.routes import GENERATION_ERRORS, WEBSOCKET, RouteRoom, RouteRow
from openai_cpu_server.http.sockets import SocketServer


class ResponsesRoutes:
    def __init__(self, parts: Parts) -> None:
        models, options = parts.models, parts.options
        shelf = parts.jobs.responses if parts.jobs else None
        background = Background(shelf, parts.endings) if shelf else None
        if background is not None:
            parts.at_end.append(background.close)
        reader, maker = TurnReader(shelf, options), Maker(parts.generation, options, shelf)
        self.route = ResponsesRoute(models, options, reader, maker, background)
        self.stored = StoredResponses(shelf, background, options)
        self.socket = SocketServer(partial(ResponsesExchange, reader, maker), parts.sockets)


ROOM = RouteRoom[Parts, ResponsesRoutes](
    ResponsesRoutes,
    (
        RouteRow(
            "POST",
            "/v1/responses",
            lambda at: at.route.create,
            access=CALLS,
            summary="Make a response: whole, as server-sent events, or in the background",
            tag="Responses",
            body=ResponsesBody,
            answer=ResponseObject,
            streams=True,
            errors=GENERATION_ERRORS,
            batched=lambda at: at.route.answer,
        ),
        RouteRow(
            WEBSOCKET,
            "/v1/responses",
            lambda at: at.socket.serve,
            access=INFERENCE,
            summary="OpenAI's WebSocket mode: response.create in, the events of a stream out",
            tag="Responses",
        ),
        RouteRow(
            "POST",
            "/v1/responses/input_tokens",
            lambda at: at.route.input_tokens,
            access=WORK,
            summary="How many tokens a response's prompt would have",
            tag="Responses",
            body=InputTokensBody,
            answer=InputTokens,
            errors=(404, 503),
        ),
        RouteRow(
            "GET",
            "/v1/responses/{id}",
            lambda at: at.stored.one,
            access=REQUESTS,
            summary="A stored response, or the events of one that was made in the background",
            tag="Responses",
            query={
                "stream": {"type": "boolean", "default": False},
                "starting_after": {
                    "type": "integer",
                    "description": "number of the last event that is known",
                },
                "include[]": {
                    "type": "string",
                    "description": "changes nothing: all that there is is shown",
                },
                "include_obfuscation": {"type": "boolean", "description": "changes nothing"},
            },
            answer=ResponseObject,
            streams=True,
            errors=(400,),
        ),
        RouteRow(
            "DELETE",
            "/v1/responses/{id}",
            lambda at: at.stored.delete,
            access=REQUESTS,
            summary="Delete it",
            tag="Responses",
            answer=ResponseDeleted,
        ),
        RouteRow(
            "POST",
            "/v1/responses/{id}/cancel",
            lambda at: at.stored.cancel,
            access=INFERENCE,
            summary="End one that is made in the background",
            tag="Responses",
            answer=ResponseObject,
            errors=(400,),
        ),
        RouteRow(
            "GET",
            "/v1/responses/{id}/input_items",
            lambda at: at.stored.input_items,
            access=REQUESTS,
            summary="What went into it",
            tag="Responses",
            query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, "include[]": {"type": "string"}},
            answer=ItemList,
        ),
    ),
)
