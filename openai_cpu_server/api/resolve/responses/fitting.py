"""`truncation: auto`: which messages of a long conversation are left out, so that the rest fits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openai_cpu_server.api.resolve.responses.conversation import Told

_STRIDE = 8
"""Where much is left, exchanges are left out in such steps: the next turns then begin alike, and find their
prompts computed."""


def fitted(told: Sequence[Told], fits: Callable[[Sequence[Told]], bool]) -> list[Told] | None:
    """The longest of the ways to shorten it that fits; None: not even the shortest does.

    The system message stays. First whole exchanges go, the oldest first; of the last one the question stays,
    and what the model did since goes step by step, but for the last step.
    """
    ways = _ways(list(told))
    low, high = 0, len(ways)
    while low < high:
        middle = (low + high) // 2
        if fits(ways[middle]):
            high = middle
        else:
            low = middle + 1
    return ways[low] if low < len(ways) else None


def _ways(told: list[Told]) -> list[list[Told]]:
    """All that may be left, each part of the one before."""
    head = [one for one in told[:1] if one.message.role == "system"]
    rest = told[len(head) :]
    exchanges = _split(rest, lambda one: one.message.role == "user")
    last = _split(exchanges[-1], lambda one: one.message.role == "assistant") if exchanges else []
    ways = [head + _joined(exchanges[count:]) for count in _counts(len(exchanges))]
    ways += [head + last[0] + _joined(last[count:]) for count in range(2, len(last))]
    return ways


def _counts(num_exchanges: int) -> list[int]:
    """How many exchanges may be left out."""
    strides = range(_STRIDE, num_exchanges - _STRIDE, _STRIDE)
    single = range(max(strides.stop if strides else 1, 1), num_exchanges)
    return sorted({*strides, *single})


def _split(told: Sequence[Told], begins: Callable[[Told], bool]) -> list[list[Told]]:
    parts: list[list[Told]] = []
    for one in told:
        if begins(one) or not parts:
            parts.append([])
        parts[-1].append(one)
    return parts


def _joined(parts: Sequence[Sequence[Told]]) -> list[Told]:
    return [one for part in parts for one in part]
