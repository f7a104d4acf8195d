"""One sequence in the scheduler: its tokens, how many of them are computed, and its status; and the policies
that say which of two goes first.

No policy moves batch work in front of an interactive request, however long it has waited: its share is the
scheduler's concern (`batch_floor`).
"""

from __future__ import annotations

import enum
from bisect import bisect_right

from openai_cpu_server.contract.request import GenerationRequest, Priority


class SequenceStatus(enum.Enum):
    WAITING = "waiting"
    """It holds no slot and no KV cells."""
    RUNNING = "running"
    """It holds a slot, and the KV blocks that the ledger books for that."""
    FINISHED = "finished"
    """It has left and holds nothing."""


_MOVES = {
    SequenceStatus.WAITING: {SequenceStatus.RUNNING, SequenceStatus.FINISHED},
    SequenceStatus.RUNNING: {SequenceStatus.WAITING, SequenceStatus.FINISHED},
    SequenceStatus.FINISHED: set[SequenceStatus](),
}


class Sequence:
    """Prompt and output in one list; `computed` of its tokens have KV cells in `slot`.

    One rule covers prefill, chunked prefill, decode and every kind of resuming: compute up to n of the
    `pending` tokens, and sample if that reaches the end.
    """

    def __init__(
        self,
        request: GenerationRequest,
        output: tuple[int, ...],
        beginning: tuple[int, ...],
        arrival: int,
        arrived_s: float,
        expected_output: int | None = None,
    ) -> None:
        """A sequence that waits.

        `output` was generated before a crash; its constraint forces `beginning` behind that. `arrival` counts
        the sequences that came before. `expected_output` is in tokens; None: `max_tokens`.
        """
        self.request = request
        self.arrival = arrival
        """How many sequences came before it."""
        self.arrived_s = arrived_s
        self.tokens = [*request.tokens, *output, *beginning]
        self.computed = 0
        self.num_scored = 0 if request.prompt_logprobs and not output else len(request.tokens) - 1
        """How many prompt positions are done with scoring: the log-probability of the token that follows was
        reported, or is not asked for.
        """
        self.cached_tokens: int | None = None
        """How many prompt tokens were shared or restored when it first ran; None: it has not run yet."""
        self.expected_output = request.max_tokens if expected_output is None else expected_output
        """Output tokens that were expected when it came. It never changes: queues are sorted by it."""
        self.num_preemptions = 0
        self.num_interruptions = 0
        self.num_padded = 0
        """How many padding tokens were computed in the steps that it took part in."""
        self.num_drafted = 0
        """How many draft tokens were computed for it."""
        self.num_accepted = 0
        """How many of these draft tokens were right."""
        self.expected_reuse = 0
        """How many of its tokens were saved when it came."""
        self.shared_prefixes: dict[int, int] = {}
        """Length of the prefix that it has in common with another's prompt, by the arrival of that one."""
        self.stops: list[int] = []
        """Ascending, how many tokens are computed where a step has to end: the state there is to be saved."""
        self.num_encoded = 0
        """How many of its media, from the first on, the backend has the rows or all cells of."""
        self.num_given_up = 0
        """How many times others' pictures were encoded in place of one of its own that was begun."""
        self._num_to_read = len(self.tokens)
        """How many tokens it had when it last began to run."""
        self._status = SequenceStatus.WAITING
        self._slot: int | None = None

    @property
    def status(self) -> SequenceStatus:
        return self._status

    @property
    def slot(self) -> int:
        """The native sequence id of a running sequence."""
        assert self._slot is not None, f"{self.request.id} is {self._status.value} and has no slot"
        return self._slot

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def readable(self) -> int:
        """How many of these one step may compute: none while it waits for the rows of a picture."""
        at = bisect_right(self.stops, self.computed)
        end = self.stops[at] if at < len(self.stops) else len(self.tokens)
        return min(end, self._next_border) - self.computed if self.request.media else end - self.computed

    @property
    def _next_border(self) -> int:
        """Where rows of media begin or end, next: they are computed apart from tokens."""
        for at, medium in enumerate(self.request.media):
            if self.computed < medium.start:
                return medium.start
            if self.computed < medium.end:
                return medium.end if at < self.num_encoded else self.computed
        return len(self.tokens)

    @property
    def has_to_encode(self) -> bool:
        """A medium of it is to be encoded, whether it has come there yet or not."""
        return self.num_encoded < len(self.request.media)

    @property
    def is_blind(self) -> bool:
        """It cannot go on before a medium is encoded."""
        return bool(self.request.media) and self.readable == 0

    @property
    def computes_whole(self) -> bool:
        """What is readable must be computed in one step."""
        at = self.medium_at(self.computed)
        return at is not None and self.request.media[at].rows.is_whole

    @property
    def is_in_one_place(self) -> bool:
        """What it computes next cannot be taken back in part."""
        at = self.medium_at(self.computed)
        return at is not None and self.request.media[at].rows.has_one_place

    def medium_at(self, index: int) -> int | None:
        """The place among its media of the one that has this row."""
        media = enumerate(self.request.media)
        return next((at for at, one in media if one.start <= index < one.end), None)

    def cut(self, num_tokens: int) -> int:
        """With how many of these first tokens a sequence can begin: not with some of the rows of a medium,
        where these cannot be parted."""
        at = self.medium_at(num_tokens)
        medium = self.request.media[at] if at is not None else None
        return num_tokens if medium is None or medium.can_be_cut else medium.start

    def stop_at(self, num_tokens: int, *, apart: int) -> None:
        """Let a step end where so many tokens are computed, or do with a stop that comes shortly before. It
        takes the place of one that comes shortly behind."""
        at = bisect_right(self.stops, num_tokens)
        if at and num_tokens - self.stops[at - 1] < apart:
            return
        behind = at < len(self.stops) and self.stops[at] - num_tokens < apart
        self.stops[at : at + behind] = [num_tokens]

    @property
    def expected_pending(self) -> int:
        """How many tokens it is expected to compute, while it waits: not those that it can reuse."""
        return self.pending - min(max(self.expected_reuse, *self.shared_prefixes.values(), 0), self.reusable)

    @property
    def is_decoding(self) -> bool:
        """Whether, of the tokens that it had when it last began to run, at most the last is still pending.

        All that is pending besides was sampled since then, or was forced by its constraint.
        """
        return self.computed >= self._num_to_read - 1

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.request.tokens) :])

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.request.tokens)

    @property
    def remaining(self) -> int:
        """How many output tokens may still come."""
        return self.request.max_tokens - self.num_output

    @property
    def reusable(self) -> int:
        """How many tokens may be shared or restored, from the first on: none that must give logits.

        The last token always must, and all that are to be scored.
        """
        return self.num_scored if self.is_scoring else len(self.tokens) - 1

    @property
    def is_scoring(self) -> bool:
        return self.num_scored < len(self.request.tokens) - 1

    def targets(self, start: int, end: int) -> tuple[int, ...]:
        """The prompt tokens that follow positions start .. end-1, if any of them is to be scored; else ()."""
        if not self.is_scoring or end <= self.num_scored:
            return ()
        return self.request.tokens[start + 1 : end + 1]

    def run(self, slot: int, num_reused: int, stops: list[int]) -> None:
        """Move to running, in a slot that has the cells of the first `num_reused` tokens already."""
        self._move(SequenceStatus.RUNNING)
        self._slot = slot
        self.computed = num_reused
        self.stops = stops
        self._num_to_read = len(self.tokens)
        self.num_encoded = sum(medium.end <= num_reused for medium in self.request.media)
        self.shared_prefixes.clear()

    def release(self) -> None:
        """Move back to waiting. Its cells are gone: its tokens are restored or computed again later."""
        self._move(SequenceStatus.WAITING)
        self._slot = None
        self.computed = 0
        self.num_preemptions += 1

    def finish(self) -> None:
        self._move(SequenceStatus.FINISHED)
        self._slot = None

    def _move(self, to: SequenceStatus) -> None:
        assert to in _MOVES[self._status], f"{self.request.id}: {self._status.value} -> {to.value}"
        self._status = to


def take_over(sequence: Sequence, former: Sequence) -> None:
    """It goes on with the request of one that has finished, whose figures are its own."""
    sequence.cached_tokens = former.cached_tokens
    sequence.num_preemptions = former.num_preemptions
    sequence.num_interruptions = former.num_interruptions
    sequence.num_padded = former.num_padded
    sequence.num_drafted = former.num_drafted
    sequence.num_accepted = former.num_accepted


TOKENS_PER_S = 16.0
"""A second of earlier arrival is worth so many tokens of expected output: else long jobs might wait for ever.

It is a rule of fairness, not a measured price: a job of 1,000 tokens overtakes every job of 40 that comes a
minute later.
"""


class PriorityPolicy:
    """Interactive before batch; clients take turns; first come, first served.

    Other policies differ in some of that. A smaller key goes first; keys never change, so that queues stay
    sorted.
    """

    def lane(self, sequence: Sequence) -> int:
        """Sequences of a smaller lane may take the place of those of a larger one."""
        return sequence.request.priority

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        """Within a lane, groups of clients take turns, and within a group clients."""
        return sequence.request.turns

    def key(self, sequence: Sequence) -> float:
        return sequence.arrived_s


class FifoPolicy(PriorityPolicy):
    """First come, first served, whoever it is."""

    def lane(self, sequence: Sequence) -> int:
        return Priority.INTERACTIVE

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return "", ""


class ShortestFirstPolicy(PriorityPolicy):
    """Interactive before batch; the shortest expected output first. Waiting makes up for length."""

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return "", ""

    def key(self, sequence: Sequence) -> float:
        return sequence.expected_output + TOKENS_PER_S * sequence.arrived_s


POLICIES = {"priority": PriorityPolicy, "fifo": FifoPolicy, "sjf": ShortestFirstPolicy}
