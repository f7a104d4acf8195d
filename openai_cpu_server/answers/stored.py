"""Whole answers as bytes: the engine's events without their requests' ids, which are new each time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_cpu_server.contract.figures import NO_WORK
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest

_Events = list[tuple[int, TokenEvent]]


class Corrupt(Exception):
    """What was stored is no answer to this question."""


def is_good(finish: Finish, *, asked_tokens: int) -> bool:
    """Whether others may have the answer, too: its end is the model's, or the limit that the client asked
    for, and not that of a context."""
    return finish.reason is FinishReason.STOP or (finish.reason is FinishReason.LENGTH and asked_tokens > 0)


def packed(events: Sequence[TokenEvent], requests: Sequence[GenerationRequest]) -> bytes:
    indices = {request.id: index for index, request in enumerate(requests)}
    told = [(indices[event.id], msgspec.structs.replace(event, id="")) for event in events]
    return msgspec.msgpack.encode(told)


def unpacked(answer: bytes, requests: Sequence[GenerationRequest]) -> list[TokenEvent]:
    """Its events, as events of these requests. Nothing was computed for them. Raises Corrupt."""
    try:
        told = msgspec.msgpack.decode(answer, type=_Events)
    except msgspec.MsgspecError:
        raise Corrupt from None
    _check_whole(told, len(requests))
    return [_of(requests[index], event) for index, event in told]


def _check_whole(told: _Events, num_requests: int) -> None:
    """Each of the requests ends once, well, and with its last event. Raises Corrupt."""
    ended: set[int] = set()
    for index, event in told:
        if not 0 <= index < num_requests or index in ended:
            raise Corrupt
        if event.finish is not None:
            if not event.finish.is_good:
                raise Corrupt
            ended.add(index)
    if len(ended) != num_requests:
        raise Corrupt


def _of(request: GenerationRequest, event: TokenEvent) -> TokenEvent:
    if event.finish is None:
        return msgspec.structs.replace(event, id=request.id)
    work = NO_WORK | {"cached_tokens": len(request.tokens)}
    finish = msgspec.structs.replace(event.finish, **work)
    return msgspec.structs.replace(event, id=request.id, finish=finish)
