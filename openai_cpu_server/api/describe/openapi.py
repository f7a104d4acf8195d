"""`GET /openapi.json`: this server's routes as OpenAPI 3.1, made from the models that check and answer."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Mapping, Sequence

import msgspec
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from openai_cpu_server import __version__
from openai_cpu_server.api.access.access import Callers
from openai_cpu_server.api.describe.operations import OPERATIONS, JsonSchema, Operation
from openai_cpu_server.api.errors import HTTP_CODES, TABLE, ErrorObject
from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.http.gate import operation_name

PATH = "/openapi.json"
_BODY_NAME = "request.{model}"
_ANSWER_NAME = "response.{name}"
_SCHEMAS = "#/components/schemas/"
_SECURITY: list[JsonSchema] = [{"bearer": []}, {"x-api-key": []}]
_TITLE = "openai-cpu-server"
_DESCRIPTION = "GGUF models on CPUs behind the OpenAI API."


class OpenApiRoute:
    """The document is made at the first request for it. `routes` are all of the application, this one among
    them."""

    def __init__(self, routes: Sequence[BaseRoute], *, lenient: bool) -> None:
        self._routes = routes
        self._lenient = lenient

    async def document(self, request: Request) -> Response:
        text = _document(tuple(map(operation_name, self._routes)), self._lenient)
        return Response(text, media_type="application/json")


@functools.cache
def _document(names: tuple[str, ...], lenient: bool) -> bytes:
    return json.dumps(document(names, lenient=lenient)).encode()


def document(names: Sequence[str], *, lenient: bool) -> JsonSchema:
    """The document of these operations. `lenient`: unknown fields are ignored, not refused."""
    paths: dict[str, JsonSchema] = {}
    for name in names:
        method, path = name.split(" ")
        operation = OPERATIONS[name]
        item = paths.setdefault(path, {})
        if method == "WEBSOCKET":
            item["x-websocket"] = {"summary": operation.summary}
        else:
            item[method.lower()] = _operation(name, path, operation)
    shown = [OPERATIONS[name] for name in names]
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {**_body_schemas(shown, lenient=lenient), **_answer_schemas(shown)},
            "responses": _error_responses(shown),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(name: str, path: str, operation: Operation) -> JsonSchema:
    scope = operation.access.scope
    found: JsonSchema = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", name.lower()).strip("_"),
        "tags": [operation.tag],
        "security": _SECURITY if scope else [],
        "responses": {
            str(operation.status): _answer(operation),
            **{
                str(status): {"$ref": f"#/components/responses/{_error_name(status, operation)}"}
                for status in _errors_of(path, operation)
            },
        },
    }
    if scope:
        found["x-required-scope"] = scope.value
    if parameters := [*_path_parameters(path), *_query_parameters(operation)]:
        found["parameters"] = parameters
    if content := _content_of_body(operation):
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answer(operation: Operation) -> JsonSchema:
    if operation.status == 204:
        return {"description": "Done."}
    schema: JsonSchema = {"type": "object"} if operation.media == "application/json" else {"type": "string"}
    if operation.answer is not None:
        schema = {"$ref": _SCHEMAS + _ANSWER_NAME.format(name=operation.answer.__name__)}
    if operation.events:
        names = [_ANSWER_NAME.format(name=event.__name__) for event in operation.events]
        schema["x-events"] = [{"$ref": _SCHEMAS + name} for name in names]
    content: JsonSchema = {operation.media: {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string", "description": operation.stream_form}}
    return {"description": operation.summary, "content": content}


def _content_of_body(operation: Operation) -> JsonSchema:
    if operation.form is not None:
        return {"multipart/form-data": {"schema": operation.form}}
    if operation.body is None:
        return {}
    return {
        "application/json": {"schema": {"$ref": _SCHEMAS + _BODY_NAME.format(model=operation.body.__name__)}}
    }


def _path_parameters(path: str) -> list[JsonSchema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(operation: Operation) -> list[JsonSchema]:
    return [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]


def _errors_of(path: str, operation: Operation) -> list[int]:
    found = set(operation.errors)
    if operation.access.scope:
        found |= {401, 403}
    if operation.access.callers is not Callers.PROBES:
        found.add(503)
    if operation.body or operation.form:
        found |= {400, 408, 413}
    if operation.query:
        found.add(400)
    if "{" in path:
        found |= {400, 404}
    return sorted(found)


def _statuses() -> set[int]:
    return {status for name, o in OPERATIONS.items() for status in _errors_of(name.split(" ")[1], o)}


def _error_responses(operations: Sequence[Operation]) -> dict[str, JsonSchema]:
    """One for each status in each shape that errors have."""
    shapes = {operation.error: operation for operation in operations}
    pairs = [(status, operation) for operation in shapes.values() for status in sorted(_statuses())]
    return {_error_name(status, operation): _error(status, operation) for status, operation in pairs}


def _error_name(status: int, operation: Operation) -> str:
    return f"error{status}" if operation.error is ErrorObject else f"{operation.error.__name__}{status}"


def _error(status: int, operation: Operation) -> JsonSchema:
    """A response that lists the codes which the table of errors has for its status."""
    said = [
        f"`{failure.code or failure.type}`: {inspect.getdoc(cls)}"
        for cls, failure in TABLE.items()
        if failure.status == status
    ]
    if status in HTTP_CODES:
        said.append(f"`{HTTP_CODES[status]}`: There is no such route.")
    schema = {"$ref": _SCHEMAS + _ANSWER_NAME.format(name=operation.error.__name__)}
    return {"description": "\n".join(said), "content": {"application/json": {"schema": schema}}}


def _body_schemas(operations: Sequence[Operation], *, lenient: bool) -> Mapping[str, object]:
    bodies: list[type[Body]] = [operation.body for operation in operations if operation.body is not None]
    template = _SCHEMAS + _BODY_NAME
    _, schema = models_json_schema([(body, "validation") for body in bodies], ref_template=template)
    models: dict[str, JsonSchema] = schema.get("$defs", {})
    for model in models.values():
        if lenient and "properties" in model:
            model["additionalProperties"] = True
    return {_BODY_NAME.format(model=name): model for name, model in models.items()}


def _answer_schemas(operations: Sequence[Operation]) -> Mapping[str, object]:
    errors = {operation.error for operation in operations}
    answers = {*errors, *(operation.answer for operation in operations if operation.answer is not None)}
    answers |= {event for operation in operations for event in operation.events}
    _, schemas = msgspec.json.schema_components(answers, ref_template=_SCHEMAS + _ANSWER_NAME)
    return {_ANSWER_NAME.format(name=name): schema for name, schema in schemas.items()}
