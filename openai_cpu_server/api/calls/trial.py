"""A small model's answer on trial: how it is asked for, who may end it meanwhile, and what counts of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from openai_cpu_server.api.calls.call import Call
from openai_cpu_server.api.calls.held import Heard
from openai_cpu_server.api.calls.running import Running
from openai_cpu_server.contract.messages import Finish
from openai_cpu_server.models.routing.verdict import Judged

Holding = Callable[[], Awaitable[list[Heard]]]


async def _await(holding: Holding) -> list[Heard]:
    return await holding()


def _unheard(running: Running) -> None:
    """Nobody can cancel it by name."""


class Trial(NamedTuple):
    """Who looks after an answer that is held."""

    watched: Callable[[Holding], Awaitable[list[Heard]]] = _await
    """Does the work as long as somebody wants it."""
    submitted: Callable[[Running], None] = _unheard
    """Is told of the call that may be cancelled meanwhile."""


UNWATCHED = Trial()


def with_scores(call: Call) -> Call:
    """The same call, with log-probabilities that are not shown."""
    requests = tuple(
        request if request.top_logprobs is not None else msgspec.structs.replace(request, top_logprobs=0)
        for request in call.requests
    )
    return msgspec.structs.replace(call, requests=requests)


def judged(call: Call, heard: Sequence[Heard]) -> list[Judged]:
    """One for each of its sequences, all of which have ended: its answer, not what it thought before."""
    logprobs: dict[str, list[float]] = {request.id: [] for request in call.requests}
    finishes: dict[str, Finish] = {}
    for event, _ in heard:
        logprobs[event.id] += [entry.logprob for entry in event.logprobs]
        if event.finish is not None:
            finishes[event.id] = event.finish
    return [
        Judged(
            logprobs=tuple(logprobs[request.id][finishes[request.id].thought_tokens :]),
            finish=finishes[request.id].reason,
            has_form=request.constraint is not None and request.constraint.grammar is not None,
        )
        for request in call.requests
    ]
