"""Where sequences stop whose memory has a state, so that it is saved there and others can begin behind it."""

from __future__ import annotations

from dataclasses import dataclass

from openai_cpu_server.scheduler.prefix_cache import LEAST_STATE_TOKENS
from openai_cpu_server.scheduler.reuse import PrefixReuse
from openai_cpu_server.scheduler.sequence import Sequence

INTERVAL_TOKENS = 512
"""In a long prompt a state is saved each so many tokens, also where nobody is known to part: to compute them
again takes a second or two. Who needs the room drops those first that save least."""


@dataclass(frozen=True)
class Checkpoints:
    """The plan for one model. Without a state nobody has to stop."""

    has_states: bool
    interval: int = INTERVAL_TOKENS

    def stops(self, sequence: Sequence, reuse: PrefixReuse) -> list[int]:
        """Where a sequence that begins with this reuse is to stop on its way to the end of its tokens.

        It stops where its prompt is known to part from others': where it does from what is saved or running
        now, and at the borders that its renderer has told. Between these it stops at multiples of the
        interval, which are the same for all that share a beginning. Stops are apart.
        """
        if not self.has_states:
            return []
        begin, end = reuse.num_tokens, len(sequence.tokens)
        borders = sorted({reuse.parts_at, *sequence.request.borders})
        found: list[int] = []
        for border in borders:
            if self._is_apart(begin, found, border) and border < end:
                found.append(border)
        for multiple in range(begin - begin % self.interval + self.interval, end, self.interval):
            if all(abs(multiple - other) >= LEAST_STATE_TOKENS for other in (begin, *found, end)):
                found.append(multiple)
        return sorted(found)

    @staticmethod
    def _is_apart(begin: int, found: list[int], border: int) -> bool:
        return border - (found[-1] if found else begin) >= LEAST_STATE_TOKENS
