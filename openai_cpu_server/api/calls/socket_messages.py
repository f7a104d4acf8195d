"""The messages of a WebSocket: one JSON object each, about one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import msgspec

from openai_cpu_server.api.errors import ErrorBody, error_object, failure_of, headers_of
from openai_cpu_server.contract.messages import ModelLoading, Place
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.json_size import MOST_TOKENS, check_size

_MAX_NAME_CHARS = 64
_ASKS_FOR_STREAM = msgspec.Raw(b"true")
_Fields = dict[str, msgspec.Raw]


class Ask(msgspec.Struct, frozen=True):
    """A request: the body that a POST would have."""

    name: str | None
    """The client's own `request_id`."""
    body: bytes


class Cancel(msgspec.Struct, frozen=True):
    name: str
    """A `request_id`, or the id that the chunks have."""


class Queued(msgspec.Struct, frozen=True):
    """A streamed request has to wait. This comes before its first chunk only."""

    request_id: str
    id: str
    """The one that its chunks will have."""
    position: int
    """1 is next."""
    first_token_ms: int
    """An estimate, from now."""
    object: str = "queue"


class Waking(msgspec.Struct, frozen=True):
    """A streamed request waits for its model. This comes before its first chunk only."""

    request_id: str
    id: str
    loaded: float
    """Share of the model that is loaded, 0 to 1."""
    object: str = "model.loading"


class Done(msgspec.Struct, frozen=True):
    """The last message about a request that went well."""

    request_id: str
    headers: Mapping[str, str]
    """The headers that the response of a POST would have had."""
    done: bool = True


class Failed(msgspec.Struct, frozen=True):
    """The last message about a request that did not."""

    request_id: str | None
    """None: it is about no request, such as an unknown one that was to be cancelled."""
    status: int
    error: ErrorBody
    headers: Mapping[str, str]


def read_message(data: bytes) -> Union[Ask, Cancel]:
    """What the client wants. What is no JSON object is an Ask, too: it is refused where all bodies are.

    Raises InvalidRequest, TooManyValues.
    """
    check_size(data, most_numbers=MOST_TOKENS)
    try:
        fields = msgspec.json.decode(data, type=_Fields)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Ask(None, data)
    if "cancel" in fields:
        return _cancel(fields)
    name = _name(fields, "request_id")
    fields.pop("request_id", None)
    if bytes(fields.get("stream", b"null")).strip() == b"null":
        fields["stream"] = _ASKS_FOR_STREAM
    return Ask(name, msgspec.json.encode(fields))


def _cancel(fields: _Fields) -> Cancel:
    name = _name(fields, "cancel")
    if name is None or len(fields) > 1:
        raise InvalidRequest(
            "A message that cancels has the field 'cancel' alone, with the id of a request.",
            param="cancel",
            code="invalid_value",
        )
    return Cancel(name)


def _name(fields: _Fields, field: str) -> str | None:
    try:
        name: str | None = msgspec.json.decode(fields.get(field, b"null"), type=Union[str, None])
    except (msgspec.DecodeError, UnicodeDecodeError):
        name = ""
    if name is not None and not 0 < len(name) <= _MAX_NAME_CHARS:
        message = f"Invalid value for '{field}': expected a string of 1 to {_MAX_NAME_CHARS} characters."
        raise InvalidRequest(message, param=field, code="invalid_value")
    return name


def about(name: str, json_object: bytes) -> bytes:
    """The same object, saying which request it belongs to."""
    return b'{"request_id":' + msgspec.json.encode(name) + b"," + json_object[1:]


def queued(name: str, call_id: str, place: Place) -> bytes:
    return msgspec.json.encode(Queued(name, call_id, place.position, round(place.first_token_ms)))


def waking(name: str, call_id: str, loading: ModelLoading) -> bytes:
    return msgspec.json.encode(Waking(name, call_id, round(loading.fraction, 2)))


def done(name: str, headers: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(Done(name, headers))


def failed(name: str | None, error: Exception, *, ticket_id: str, headers: Mapping[str, str]) -> bytes:
    body = error_object(error, request_id=ticket_id).error
    said = {**headers, **headers_of(error)}
    return msgspec.json.encode(Failed(name, failure_of(error).status, body, said))
