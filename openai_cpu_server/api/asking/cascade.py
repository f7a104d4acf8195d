"""What routers are told, what clients are told of them, and a small model's answer on trial."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from openai_cpu_server.api.asking.ask import Ask, AskedConversation
from openai_cpu_server.api.asking.call import Call
from openai_cpu_server.api.asking.running import RunningCall, TimedEvent
from openai_cpu_server.contract.messages import Finish
from openai_cpu_server.http.clients import Client, account_of
from openai_cpu_server.http.context import Sender
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.parse import header_safe
from openai_cpu_server.models.routing.decide import JudgedAnswer, RouterInput
from openai_cpu_server.models.routing.follow import RoutedCall
from openai_cpu_server.models.routing.router import RouterCaller
from openai_cpu_server.observe.ended import RouteTaken

ROUTED_MODEL = "x-routed-model"
ROUTED_WHY = "x-routed-why"


def asked_of(ask: Ask, sender: Sender) -> RouterInput:
    texts, request, given_tokens = _prompt(ask)
    return RouterInput(
        texts=texts,
        request=request,
        given_tokens=given_tokens,
        max_tokens=None if ask.max_tokens is None else ask.max_tokens.tokens,
        has_tools=ask.tools is not None,
        has_schema=ask.form is not None,
        stream=ask.stream,
        user=Client.of(_nameless(sender.identity), ask.user).label if ask.user else _holder(sender.identity),
        key=_holder(sender.identity),
    )


def questioner(ask: Ask, sender: Sender) -> RouterCaller:
    """Raises InvalidRequest for a priority that there is not."""
    return RouterCaller(
        priority=sender.priority(field=ask.priority, tier=ask.service_tier),
        client=Client.of(sender.identity, ask.user).label,
        account=account_of(sender.identity),
        group=Client.group_of(sender.identity),
    )


def routed_headers(routed: RoutedCall) -> dict[str, str]:
    return {ROUTED_MODEL: header_safe(routed.chosen.name), ROUTED_WHY: header_safe(routed.why)}


def taken(routed: RoutedCall) -> RouteTaken:
    return RouteTaken(router=routed.router, model=routed.chosen.name, reason=routed.reason.value)


def _prompt(ask: Ask) -> tuple[tuple[str, ...], str, int]:
    """All texts, the last one, and how many tokens are given as ids."""
    if isinstance(ask.prompt, AskedConversation):
        users = [message.text for message in ask.prompt.messages if message.role == "user"]
        texts = tuple(message.text for message in ask.prompt.messages)
        return texts, users[-1] if users else texts[-1], 0
    texts = tuple(prompt for prompt in ask.prompt.prompts if isinstance(prompt, str))
    ids = [len(prompt) for prompt in ask.prompt.prompts if not isinstance(prompt, str)]
    return texts, texts[-1] if texts else "", sum(ids)


def _holder(identity: Identity) -> str:
    """The holder of a key goes before all else; without one it is the key, else the address."""
    return Client.of(identity, None).label


def _nameless(identity: Identity) -> Identity:
    """Users of one key with a name are several, for a router."""
    return Identity(None, identity.digest, identity.address)


Holding = Callable[[], Awaitable[list[TimedEvent]]]


async def _await(holding: Holding) -> list[TimedEvent]:
    return await holding()


def _unheard(running: RunningCall) -> None:
    """Nobody can cancel it by name."""


class CascadeAttempt(NamedTuple):
    """Who looks after an answer that is held."""

    watched: Callable[[Holding], Awaitable[list[TimedEvent]]] = _await
    """Does the work as long as somebody wants it."""
    submitted: Callable[[RunningCall], None] = _unheard
    """Is told of the call that may be cancelled meanwhile."""


UNWATCHED = CascadeAttempt()


def with_scores(call: Call) -> Call:
    """The same call, with log-probabilities that are not shown."""
    requests = tuple(
        request if request.top_logprobs is not None else msgspec.structs.replace(request, top_logprobs=0)
        for request in call.requests
    )
    return msgspec.structs.replace(call, requests=requests)


def judged(call: Call, heard: Sequence[TimedEvent]) -> list[JudgedAnswer]:
    """One for each of its sequences, all of which have ended: its answer, not what it thought before."""
    logprobs: dict[str, list[float]] = {request.id: [] for request in call.requests}
    finishes: dict[str, Finish] = {}
    for event, _ in heard:
        logprobs[event.id] += [entry.logprob for entry in event.logprobs]
        if event.finish is not None:
            finishes[event.id] = event.finish
    return [
        JudgedAnswer(
            logprobs=tuple(logprobs[request.id][finishes[request.id].thought_tokens :]),
            finish=finishes[request.id].reason,
            has_form=request.constraint is not None and request.constraint.grammar is not None,
        )
        for request in call.requests
    ]
