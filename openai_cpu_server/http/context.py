"""One request while it is served: who has sent it, what is noted about it, and what it may use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from starlette.types import Scope

from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import ANYBODY, Identity
from openai_cpu_server.api.access.rate_limits import Lease
from openai_cpu_server.api.errors import failure_of
from openai_cpu_server.api.gates.ticket import Ticket
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.body import BodyBudget, HeldBody
from openai_cpu_server.http.identity import Claim

PRIORITY_HEADER = "X-Priority"
_BY_LABEL = {priority.label: priority for priority in Priority}
_BY_TIER = {"priority": Priority.INTERACTIVE, "flex": Priority.BATCH}
_CONTEXT = "openai_cpu_server.context"


class Sender(msgspec.Struct, frozen=True):
    """Who sent a body, and what they said beside it."""

    identity: Identity = ANYBODY
    priority_header: str | None = None
    """It outranks what the body says."""
    default_priority: Priority = Priority.INTERACTIVE
    """The priority of a body that names none."""

    @classmethod
    def of(cls, identity: Identity, *, header: str | None, default: Priority) -> Sender:
        """`default` is the server's; the key's own goes before it."""
        own = identity.key.priority if identity.key else None
        return cls(identity, header, default if own is None else own)

    def priority(self, *, field: str | None = None, tier: str | None = None) -> Priority:
        """`field` and `tier` stand in the body; our own field goes before OpenAI's tier.

        What exceeds the key's best is lowered to that. Raises InvalidRequest for any value that is wrong,
        also for one that another outranks.
        """
        from_header = _named(self.priority_header, PRIORITY_HEADER)
        from_field = _named(field, "priority")
        from_tier = _BY_TIER.get(tier) if tier is not None else None
        given = (priority for priority in (from_header, from_field, from_tier) if priority is not None)
        best = self.identity.key.max_priority if self.identity.key else Priority.INTERACTIVE
        return max(next(given, self.default_priority), best)  # the smaller one goes first

    def announced_priority(self) -> Priority | None:
        """The priority as far as it is known without the body; None: the header names none that there is."""
        try:
            return self.priority()
        except InvalidRequest:
            return None


def _named(label: str | None, param: str) -> Priority | None:
    if label is None:
        return None
    if label not in _BY_LABEL:
        expected = " or ".join(f"'{name}'" for name in _BY_LABEL)
        raise InvalidRequest(
            f"Invalid value for '{param}': expected {expected}.", param=param, code="invalid_value"
        )
    return _BY_LABEL[label]


@dataclass
class RequestContext:
    """One request, from the gate to its end: handlers find it in the scope, by `context_of`.

    What comes by no request of its own, such as a message of a WebSocket or a row of a batch, has one too.
    """

    ticket: Ticket
    sender: Sender
    lease: Lease | None = None
    """Its share of its key's limits; None: it counts against none."""
    body: HeldBody = field(default_factory=lambda: HeldBody(BodyBudget(0), 0))
    """What of its body is in memory."""
    claim: Claim | None = None
    """What the gate has let in; None: it came by no request of its own."""
    timeout_s: float | None = None
    """The server's limit for a call, waiting included; None: there is none."""

    @property
    def identity(self) -> Identity:
        return self.sender.identity

    @property
    def owner(self) -> str:
        """Under this name they store things; "" without a key of a name."""
        return self.identity.holder or ""

    def identity_now(self, keys: KeyRing) -> Identity:
        """Who has opened this connection, by the keys as they are now. Raises Unauthorized, Forbidden."""
        assert self.claim is not None, "it has come through the gate"
        return self.claim.identity(keys)

    async def reserve(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """Counts the prompt, and holds back room for the output. Raises TokensLimited."""
        if self.lease is not None:
            await self.lease.reserve(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    async def refund(self) -> None:
        """The call was refused after all, so it uses nothing."""
        if self.lease is not None:
            await self.lease.refund()


def put_context(scope: Scope, context: RequestContext) -> None:
    """The gate does so, once."""
    scope[_CONTEXT] = context


def context_of(scope: Scope) -> RequestContext:
    """The context of a request that the gate has let in."""
    context = scope[_CONTEXT]
    assert isinstance(context, RequestContext)
    return context


def limit_headers_of(scope: Scope) -> dict[str, str]:
    """What the response is to say of its key's limits; nothing where it is not metered, or not let in."""
    context = scope.get(_CONTEXT)
    lease = context.lease if isinstance(context, RequestContext) else None
    return lease.headers if lease is not None else {}


class ServedRequest:
    """How a request that has no response of its own went."""

    def __init__(self, leases: AsyncExitStack) -> None:
        self.error: Exception | None = None
        """What it failed with; None: it went well."""
        self._leases = leases

    async def hold(self, lease: Lease) -> None:
        """Holds the request to its key's limits from now to its end. Raises RequestsLimited."""
        await self._leases.enter_async_context(lease)


@asynccontextmanager
async def served(ticket: Ticket, end: Callable[[Ticket], None]) -> AsyncIterator[ServedRequest]:
    """`async with` it around all that is done for a request that has no response of its own: one of a
    WebSocket, of a list of them, of a file.

    A failure ends here, and stands in `error` for whoever tells it; what cancels goes on. In any case `end`
    is called, once, when the lease has been given back.
    """
    leases = AsyncExitStack()
    request = ServedRequest(leases)
    try:
        async with leases:
            yield request
        ticket.status = 200
    except Exception as error:
        request.error = error
        ticket.failed(error)
        ticket.status = failure_of(error).status
    finally:
        end(ticket)
