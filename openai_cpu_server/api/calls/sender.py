"""Who sent a body, and whose turn it is: a header before the body, the server's default last."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.access.keys import ANYBODY, Identity
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import InvalidRequest

PRIORITY_HEADER = "X-Priority"
_BY_LABEL = {priority.label: priority for priority in Priority}
_BY_TIER = {"priority": Priority.INTERACTIVE, "flex": Priority.BATCH}


class Sender(msgspec.Struct, frozen=True):
    """Who sent a body, and what they said beside it."""

    identity: Identity = ANYBODY
    priority_header: str | None = None
    """It outranks what the body says."""
    default_priority: Priority = Priority.INTERACTIVE
    """The priority of a body that names none."""

    @classmethod
    def of(cls, identity: Identity, *, header: str | None, default: Priority) -> Sender:
        """`default`: the server's; the key's own goes before it."""
        own = identity.key.priority if identity.key else None
        return cls(identity, header, default if own is None else own)

    def priority(self, *, field: str | None = None, tier: str | None = None) -> Priority:
        """`field` and `tier` stand in the body; our own field goes before OpenAI's tier.

        Raises InvalidRequest for any value that is wrong, also for one that another outranks.
        """
        from_header = _named(self.priority_header, PRIORITY_HEADER)
        from_field = _named(field, "priority")
        from_tier = _BY_TIER.get(tier) if tier is not None else None
        given = (priority for priority in (from_header, from_field, from_tier) if priority is not None)
        return next(given, self.default_priority)

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
