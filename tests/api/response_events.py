"""Events of responses, as the tests of rendering read them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.renderer import Chunk
from openai_cpu_server.api.responses.items import PREFIXES
from openai_cpu_server.api.responses.objects import new_response
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.api.responses.stream import ResponseStream
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.jobs.records import ResponseStatus
from tests.api.calls import PIECES, call, figures


def stream(
    one: ResolvedRequest,
    status: ResponseStatus = ResponseStatus.IN_PROGRESS,
    body: dict[str, object] | None = None,
) -> ResponseStream:
    numbers = itertools.count(1)
    return ResponseStream(
        one,
        PIECES,
        new_response(ResponsesBody.model_validate(body or {}), one, status, is_stored=True),
        now=lambda: 9.5,
        new_call_id=lambda: "call_1",
        new_item_id=lambda kind: f"{PREFIXES[kind]}{next(numbers)}",
    )


def told(one: ResponseStream, events: Sequence[TokenEvent]) -> list[Chunk]:
    """All that is told of events that end well."""
    chunks = [*one.begin(), *(chunk for event in events for chunk in one.event(event))]
    finish = events[-1].finish
    assert finish is not None
    return [*chunks, *one.end(figures(call(), {"c-0": finish}))]


def objects(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    return [json.loads(chunk.json) for chunk in chunks]


def kinds(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
