"""Whose turn it is: header before body, the extension before OpenAI's field, the server's default last."""

from __future__ import annotations

from typing import Union

import msgspec

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


class _Words(msgspec.Struct):
    """What a body says about it, whatever else is wrong with it."""

    priority: Union[str, None] = None
    service_tier: Union[str, None] = None


def likely_priority(body: bytes, *, header: str | None, default: Priority) -> Priority | None:
    """Of a call that was refused, for whoever counts them; of a body that cannot be read, as without it.

    None: it names one that there is not.
    """
    try:
        words = msgspec.json.decode(body, type=_Words)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        words = _Words()
    try:
        return priority_of(header=header, field=words.priority, tier=words.service_tier, default=default)
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
