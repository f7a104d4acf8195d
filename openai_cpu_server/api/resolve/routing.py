"""What a router is told of a body, and what a client is told of a router."""

from __future__ import annotations

from openai_cpu_server.api.access.clients import Client, account_of
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.asking.ask import Ask, AskedConversation
from openai_cpu_server.api.schemas.parse import header_safe
from openai_cpu_server.http.context import Sender
from openai_cpu_server.models.routing.asking import Questioner
from openai_cpu_server.models.routing.decide import Asked
from openai_cpu_server.models.routing.follow import Routed
from openai_cpu_server.observe.ended import RouteTaken

ROUTED_MODEL = "x-routed-model"
ROUTED_WHY = "x-routed-why"


def asked_of(ask: Ask, sender: Sender) -> Asked:
    texts, request, given_tokens = _prompt(ask)
    return Asked(
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


def questioner(ask: Ask, sender: Sender) -> Questioner:
    """Raises InvalidRequest for a priority that there is not."""
    return Questioner(
        priority=sender.priority(field=ask.priority, tier=ask.service_tier),
        client=Client.of(sender.identity, ask.user).label,
        account=account_of(sender.identity),
        group=Client.group_of(sender.identity),
    )


def routed_headers(routed: Routed) -> dict[str, str]:
    return {ROUTED_MODEL: header_safe(routed.chosen.name), ROUTED_WHY: header_safe(routed.why)}


def taken(routed: Routed) -> RouteTaken:
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
