"""Whose turn it is: header before body, the extension before OpenAI's field, the server's default last."""

from __future__ import annotations

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import InvalidRequest

HEADER = "X-Priority"
_BY_LABEL = {priority.label: priority for priority in Priority}
_BY_TIER = {"priority": Priority.INTERACTIVE, "flex": Priority.BATCH}


def priority_of(*, header: str | None, field: str | None, tier: str | None, default: Priority) -> Priority:
    """Every value given must be right, also one that another outranks."""
    from_header = _named(header, HEADER)
    from_field = _named(field, "priority")
    from_tier = _BY_TIER.get(tier) if tier is not None else None
    given = (priority for priority in (from_header, from_field, from_tier) if priority is not None)
    return next(given, default)


def _named(label: str | None, param: str) -> Priority | None:
    if label is None:
        return None
    if label not in _BY_LABEL:
        expected = " or ".join(f"'{name}'" for name in _BY_LABEL)
        raise InvalidRequest(
            f"Invalid value for '{param}': expected {expected}.", param=param, code="invalid_value"
        )
    return _BY_LABEL[label]
