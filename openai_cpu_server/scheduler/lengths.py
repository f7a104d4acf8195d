"""How long outputs really become: learned by route and client, for `max_tokens` is only what they may be."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from openai_cpu_server.contract.request import GenerationRequest

_REMEMBERED = 64
"""Outputs of one kind that are remembered. It is a memory bound; the mean of 64 lies within an eighth of its
spread.
"""
_ENOUGH = 4
"""Outputs that must be known of a kind before it speaks for itself; else the more general kind speaks."""
_MAX_KINDS = 1024
"""Kinds that are remembered; the one that was used longest ago makes room."""

_Kind = tuple[str, ...]


class OutputLengths:
    """Remembers the last outputs of each client on each route, of each route, and of all."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Kind, deque[int]] = OrderedDict()

    def learn(self, request: GenerationRequest, num_tokens: int) -> None:
        """The request's output has ended by itself, or at its `max_tokens`, with so many tokens."""
        for kind in _kinds(request):
            self._known.setdefault(kind, deque(maxlen=_REMEMBERED)).append(num_tokens)
            self._known.move_to_end(kind)
        while len(self._known) > _MAX_KINDS:
            self._known.popitem(last=False)

    def left(self, request: GenerationRequest, num_output: int = 0) -> int:
        """Tokens that are expected to come behind `num_output`; at least 1, where any may come.

        It is the mean over those known outputs that were longer than that; `max_tokens` where none was.
        """
        most = request.max_tokens - num_output
        for kind in _kinds(request):
            longer = _longer(self._known.get(kind, ()), num_output)
            if len(longer) >= _ENOUGH:
                return max(min(1, most), min(most, round(sum(longer) / len(longer)) - num_output))
        return max(0, most)


def _kinds(request: GenerationRequest) -> tuple[_Kind, ...]:
    """The kinds that the request belongs to, the most special first."""
    return (request.route, request.client), (request.route,), ()


def _longer(lengths: Iterable[int], num_output: int) -> list[int]:
    return [length for length in lengths if length > num_output]
