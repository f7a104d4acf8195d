"""Counts the tokens of thoughts while the outputs of a call come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openai_cpu_server.api.calls.call import Call
from openai_cpu_server.contract.thinking import Thoughts

Piece = Callable[[int], bytes]
"""A token's bytes, control tokens by name."""


class ThoughtCount:
    """The thoughts of all outputs of one call."""

    def __init__(self, call: Call, piece: Piece) -> None:
        self._piece = piece
        marks = call.thinking.marks if call.thinking is not None else None
        self._of = {request.id: Thoughts(marks) for request in call.requests} if marks is not None else {}
        self._open = dict(self._of)
        """Those that have not ended."""

    def read(self, request_id: str, tokens: Sequence[int]) -> None:
        """The next tokens of this request's output."""
        thoughts = self._open.get(request_id)
        if thoughts is None:
            return
        for token in tokens:
            if thoughts.read(self._piece(token)) is not None:
                del self._open[request_id]
                return

    def of(self, request_id: str) -> int:
        """Tokens of its thoughts so far, marks included."""
        return self._of[request_id].num_tokens if request_id in self._of else 0

    @property
    def total(self) -> int:
        return sum(thoughts.num_tokens for thoughts in self._of.values())
