"""What a router is told of a body, and what a client is told of a router."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.api.access.clients import Client, account_of
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.calls.call import Sender
from openai_cpu_server.api.resolve.answer_shape import asks_for_form
from openai_cpu_server.api.resolve.limits import asked_tokens
from openai_cpu_server.api.schemas.chat import ChatBody, Message
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.api.schemas.generate import GenerateBody
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.parse import header_safe
from openai_cpu_server.models.routing.asking import Questioner
from openai_cpu_server.models.routing.decide import Asked
from openai_cpu_server.models.routing.follow import Routed
from openai_cpu_server.observe.ended import RouteTaken

ROUTED_MODEL = "x-routed-model"
ROUTED_WHY = "x-routed-why"


def asked_of(body: GenerationBody, sender: Sender) -> Asked:
    """Raises InvalidRequest for limits of tokens that contradict each other."""
    texts, request, given_tokens = _prompt(body)
    user = body.user or body.safety_identifier
    return Asked(
        texts=texts,
        request=request,
        given_tokens=given_tokens,
        max_tokens=_max_tokens(body),
        has_tools=isinstance(body, ChatBody) and bool(body.tools or body.functions),
        has_schema=asks_for_form(body) or (isinstance(body, GenerateBody) and body.format == "json"),
        stream=bool(body.stream),
        user=Client.of(_nameless(sender.identity), user).label if user else _holder(sender.identity),
        key=_holder(sender.identity),
    )


def questioner(body: GenerationBody, sender: Sender) -> Questioner:
    """Raises InvalidRequest for a priority that there is not."""
    return Questioner(
        priority=sender.priority(field=body.priority, tier=body.service_tier),
        client=Client.of(sender.identity, body.user or body.safety_identifier).label,
        account=account_of(sender.identity),
        group=Client.group_of(sender.identity),
    )


def routed_headers(routed: Routed) -> dict[str, str]:
    return {ROUTED_MODEL: header_safe(routed.chosen.name), ROUTED_WHY: header_safe(routed.why)}


def taken(routed: Routed) -> RouteTaken:
    return RouteTaken(router=routed.router, model=routed.chosen.name, reason=routed.reason.value)


def _prompt(body: GenerationBody) -> tuple[tuple[str, ...], str, int]:
    """All texts, the last one, and how many tokens are given as ids."""
    if isinstance(body, ChatBody):
        users = [message for message in body.messages if message.role == "user"]
        texts = tuple(_text(message) for message in body.messages)
        return texts, _text(users[-1]) if users else texts[-1], 0
    if isinstance(body, GenerateBody):
        return (body.prompt,), body.prompt, 0
    assert isinstance(body, CompletionBody)
    prompts: Sequence[object] = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
    ids = [
        1 if isinstance(prompt, int) else len(prompt) for prompt in prompts if isinstance(prompt, (int, list))
    ]
    return texts, texts[-1] if texts else "", sum(ids)


def _text(message: Message) -> str:
    if message.content is None:
        return message.refusal or ""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content)


def _max_tokens(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        return asked_tokens(body)
    return body.max_tokens if isinstance(body, (CompletionBody, GenerateBody)) else None


def _holder(identity: Identity) -> str:
    """The holder of a key goes before all else; without one it is the key, else the address."""
    return Client.of(identity, None).label


def _nameless(identity: Identity) -> Identity:
    """Users of one key with a name are several, for a router."""
    return Identity(None, identity.digest, identity.address)
