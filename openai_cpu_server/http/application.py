from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from openai_cpu_server import __version__
from openai_cpu_server.http import gate
from openai_cpu_server.http.context import RequestHistory, request_log_of
from openai_cpu_server.http.errors import HTTP_CODES, TABLE, ErrorObject, ErrorShape
from openai_cpu_server.http.keys import OPEN, Callers
from openai_cpu_server.http.limits import NAMES as LIMIT_HEADERS
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.routes import WEBSOCKET, ApiRoute, JsonSchema, ServedRoute, routes_of

_MOST_PATH = 200
_HEADERS = ("x-request-id", "request-id", "x-ignored-parameters")


def application(
    served: Sequence[ServedRoute],
    guard: gate.AuthMiddleware,
    *,
    history: RequestHistory,
    options: ApiOptions,
    headers: Sequence[str],
) -> Starlette:
    described = [*(route.row for route in served if not route.is_hidden), DOCUMENT]
    document = ServedRoute(DOCUMENT, OpenApiRoute(described, lenient=options.lenient))
    shapes = tuple(dict.fromkeys(route.shape for route in served if route.shape is not None))
    app = Starlette(
        routes=[gate.guarded(route, guard) for route in [*served, document]],
        middleware=[
            Middleware(gate.HostGate, history=history, hosts=options.hosts, shapes=shapes),
            *_cors(options.cors_origins, headers),
            Middleware(gate.ErrorMiddleware, history=history, shapes=shapes),
        ],
        exception_handlers={HTTPException: partial(_no_such_route, shapes)},
    )
    app.router.redirect_slashes = False
    app.router.default = gate.guarded_nowhere(app.router.not_found, guard)
    return app


def _cors(origins: Collection[str], headers: Sequence[str]) -> list[Middleware]:
    """Stays outside the entrance, because preflights carry no key and pages may read errors too."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=tuple(map(gate.canonical_origin, origins)),
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(*_HEADERS, *headers, "retry-after", "retry-after-ms", *LIMIT_HEADERS),
        )
    ]


def _hint(request: Request) -> str:
    """Clients append paths to a base URL, in which users omit or repeat `/v1`."""
    names = [name for name in request.url.path.split("/") if name]
    while names and names[0] == "v1":
        del names[0]
    for near in ("/" + "/".join(["v1", *names]), "/" + "/".join(names)):
        scope = {**request.scope, "path": near}
        if near != request.url.path and any(
            route.matches(scope)[0] is Match.FULL for route in request.app.routes
        ):
            return f". There is {near}: the base URL of OpenAI's clients ends in /v1."
    return ""


async def _no_such_route(shapes: Sequence[ErrorShape], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path[:_MOST_PATH]}{_hint(request)}"
    named = HTTPException(error.status_code, detail, error.headers)
    request_log = request_log_of(request.scope)
    request_log.failed(named)
    return gate.shape_at(request_log.path, shapes).response(named, request_log.id)


_BODY_NAME = "request.{model}"
_ANSWER_NAME = "response.{name}"
_SCHEMAS = "#/components/schemas/"
_SECURITY: list[JsonSchema] = [{"bearer": []}, {"x-api-key": []}]
_TITLE = "openai-cpu-server"
_DESCRIPTION = "GGUF models on CPUs behind the OpenAI API."


class OpenApiRoute:
    def __init__(self, rows: Sequence[ApiRoute], *, lenient: bool) -> None:
        self._text = functools.cache(lambda: json.dumps(document(rows, lenient=lenient)).encode())

    @ApiRoute("GET", "/openapi.json", OPEN, "Operation")
    async def document(self, request: Request) -> Response:
        """Return this document."""
        return Response(self._text(), media_type="application/json")


(DOCUMENT,) = routes_of(OpenApiRoute)


def document(rows: Sequence[ApiRoute], *, lenient: bool) -> JsonSchema:
    """`lenient`: unknown fields are ignored."""
    paths: dict[str, JsonSchema] = {}
    for row in rows:
        item = paths.setdefault(row.shown_path, {})
        if row.method == WEBSOCKET:
            item["x-websocket"] = {"summary": row.summary}
        else:
            item[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {**_body_schemas(rows, lenient=lenient), **_answer_schemas(rows)},
            "responses": _error_responses(rows),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(row: ApiRoute) -> JsonSchema:
    scope = row.access.scope
    found: JsonSchema = {
        "summary": row.summary,
        "operationId": re.sub(r"\W+", "_", row.name.lower()).strip("_"),
        "tags": [row.tag],
        "security": _SECURITY if scope else [],
        "responses": {
            str(row.status): _answer(row),
            **{
                str(status): {"$ref": f"#/components/responses/{_error_name(status, row)}"}
                for status in _errors_of(row)
            },
        },
    }
    if scope:
        found["x-required-scope"] = scope.value
    parameters: list[JsonSchema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", row.shown_path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in row.query.items()]
    if parameters:
        found["parameters"] = parameters
    content: JsonSchema = {}
    if row.form is not None:
        content = {"multipart/form-data": {"schema": row.form}}
    elif row.body is not None:
        content = {
            row.body_media: {"schema": {"$ref": _SCHEMAS + _BODY_NAME.format(model=row.body.__name__)}}
        }
    if content:
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answer(row: ApiRoute) -> JsonSchema:
    if row.status == 204:
        return {"description": "Done."}
    schema: JsonSchema = {"type": "object"} if row.media == "application/json" else {"type": "string"}
    if row.answers:
        forms, _ = _described(row.answers)
        schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    if row.events:
        schema["x-events"], _ = _described(row.events)
    content: JsonSchema = {row.media: {"schema": schema}}
    if row.streams:
        content[row.stream_media] = {"schema": {"type": "string", "description": row.stream_form}}
    return {"description": row.summary, "content": content}


def _errors_of(row: ApiRoute) -> list[int]:
    found = set(row.errors)
    if row.access.scope:
        found |= {401, 403}
    if row.access.callers is not Callers.PROBES:
        found.add(503)
    if row.body or row.form:
        found |= {400, 408, 413}
    if row.query:
        found.add(400)
    if "{" in row.path:
        found |= {400, 404}
    return sorted(found)


def _error_responses(rows: Sequence[ApiRoute]) -> dict[str, JsonSchema]:
    shapes = {row.error: row for row in rows}
    statuses = sorted({status for row in rows for status in _errors_of(row)})
    pairs = [(status, row) for row in shapes.values() for status in statuses]
    return {_error_name(status, row): _error(status, row) for status, row in pairs}


def _error_name(status: int, row: ApiRoute) -> str:
    return f"error{status}" if row.error is ErrorObject else f"{row.error.__name__}{status}"


def _error(status: int, row: ApiRoute) -> JsonSchema:
    lines = [
        f"`{failure.code or failure.type}`: {inspect.getdoc(cls)}"
        for cls, failure in TABLE.items()
        if failure.status == status
    ]
    if status in HTTP_CODES:
        lines.append(f"`{HTTP_CODES[status]}`: The route does not exist.")
    (schema,), _ = _described([row.error])
    return {"description": "\n".join(lines), "content": {"application/json": {"schema": schema}}}


def _body_schemas(rows: Sequence[ApiRoute], *, lenient: bool) -> Mapping[str, object]:
    bodies: list[type[Body]] = [row.body for row in rows if row.body is not None]
    template = _SCHEMAS + _BODY_NAME
    _, schema = models_json_schema([(body, "validation") for body in bodies], ref_template=template)
    models: dict[str, JsonSchema] = schema.get("$defs", {})
    for model in models.values():
        if lenient and "properties" in model:
            model["additionalProperties"] = True
    return {_BODY_NAME.format(model=name): model for name, model in models.items()}


def _answer_schemas(rows: Sequence[ApiRoute]) -> Mapping[str, object]:
    kinds = dict.fromkeys(kind for row in rows for kind in (row.error, *row.answers, *row.events))
    _, schemas = _described(kinds)
    return {_ANSWER_NAME.format(name=name): schema for name, schema in schemas.items()}


def _described(kinds: Iterable[Any]) -> tuple[tuple[JsonSchema, ...], dict[str, JsonSchema]]:
    return msgspec.json.schema_components(kinds, ref_template=_SCHEMAS + _ANSWER_NAME)
