"""Sequence of the scheduler, and the policies that order sequences."""

from __future__ import annotations

import enum
from bisect import bisect_right
from dataclasses import dataclass

from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import Sample, TokenLogprob


class SequenceStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_MOVES = {
    SequenceStatus.WAITING: {SequenceStatus.RUNNING, SequenceStatus.FINISHED},
    SequenceStatus.RUNNING: {SequenceStatus.WAITING, SequenceStatus.FINISHED},
    SequenceStatus.FINISHED: set[SequenceStatus](),
}


class Sequence:
    """Prompt and output, of which the first `computed` tokens have cells in `slot`. One rule covers prefill,
    decode and resuming: compute `pending` tokens, and sample at the end."""

    def __init__(
        self,
        request: GenerationRequest,
        output: tuple[int, ...],
        beginning: tuple[int, ...],
        arrival: int,
        arrived_s: float,
        expected_output: int | None = None,
    ) -> None:
        """`output`: from before a crash. `beginning`: forced behind it; `arrival`: number of earlier
        arrivals; `expected_output`: None for `max_tokens`."""
        self.request = request
        self.arrival = arrival
        self.arrived_s = arrived_s
        self.tokens = [*request.tokens, *output, *beginning]
        self.computed = 0
        self.num_scored = 0 if request.prompt_logprobs and not output else len(request.tokens) - 1
        """Prompt positions whose next token was scored or need not be."""
        self.cached_tokens: int | None = None
        """Prompt tokens shared or restored when the sequence first ran, None before that."""
        self.expected_output = request.max_tokens if expected_output is None else expected_output
        """Constant, because queues are sorted by it."""
        self.num_preemptions = 0
        self.num_interruptions = 0
        self.num_padded = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.expected_reuse = 0
        self.shared_prefixes: dict[int, int] = {}
        """Common prefix with another prompt, by the other's arrival."""
        self.checkpoints: list[int] = []
        """Ascending token counts at which a step ends, to save the state."""
        self.num_encoded = 0
        """First media whose rows or cells the backend has."""
        self.num_discarded = 0
        """Times that its unfinished encoding was discarded for others."""
        self._num_to_read = len(self.tokens)
        self._status = SequenceStatus.WAITING
        self._slot: int | None = None

    @property
    def status(self) -> SequenceStatus:
        return self._status

    @property
    def slot(self) -> int:
        assert self._slot is not None, f"{self.request.id} is {self._status.value} and has no slot"
        return self._slot

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def readable(self) -> int:
        """Tokens for one step: none while the sequence waits for the encoder."""
        at = bisect_right(self.checkpoints, self.computed)
        end = self.checkpoints[at] if at < len(self.checkpoints) else len(self.tokens)
        return (
            min(end, self._next_media_boundary) - self.computed if self.request.media else end - self.computed
        )

    @property
    def _next_media_boundary(self) -> int:
        for at, placeholder in enumerate(self.request.media):
            if self.computed < placeholder.start:
                return placeholder.start
            if self.computed < placeholder.end:
                return placeholder.end if at < self.num_encoded else self.computed
        return len(self.tokens)

    @property
    def has_to_encode(self) -> bool:
        return self.num_encoded < len(self.request.media)

    @property
    def waits_for_encoder(self) -> bool:
        return bool(self.request.media) and self.readable == 0

    @property
    def computes_whole(self) -> bool:
        at = self.placeholder_at(self.computed)
        return at is not None and self.request.media[at].rows.is_whole

    @property
    def is_in_one_place(self) -> bool:
        """True if a part cannot be taken back."""
        at = self.placeholder_at(self.computed)
        return at is not None and self.request.media[at].rows.has_one_place

    def placeholder_at(self, index: int) -> int | None:
        media = enumerate(self.request.media)
        return next((at for at, one in media if one.start <= index < one.end), None)

    def cut(self, num_tokens: int) -> int:
        """Shorten a prefix that ends within an indivisible medium."""
        at = self.placeholder_at(num_tokens)
        placeholder = self.request.media[at] if at is not None else None
        return num_tokens if placeholder is None or placeholder.can_be_cut else placeholder.start

    def add_checkpoint(self, num_tokens: int, *, apart: int) -> None:
        """Add a checkpoint, unless one lies less than `apart` before it. It replaces one as close behind."""
        at = bisect_right(self.checkpoints, num_tokens)
        if at and num_tokens - self.checkpoints[at - 1] < apart:
            return
        behind = at < len(self.checkpoints) and self.checkpoints[at] - num_tokens < apart
        self.checkpoints[at : at + behind] = [num_tokens]

    @property
    def expected_pending(self) -> int:
        return self.pending - min(max(self.expected_reuse, *self.shared_prefixes.values(), 0), self.reusable)

    @property
    def is_decoding(self) -> bool:
        """True if at most the last token from before it began to run is pending."""
        return self.computed >= self._num_to_read - 1

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.request.tokens) :])

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.request.tokens)

    @property
    def remaining(self) -> int:
        return self.request.max_tokens - self.num_output

    @property
    def reusable(self) -> int:
        """First tokens that may be shared. The last one and those to be scored give logits."""
        return self.num_scored if self.is_scoring else len(self.tokens) - 1

    @property
    def is_scoring(self) -> bool:
        return self.num_scored < len(self.request.tokens) - 1

    def targets(self, start: int, end: int) -> tuple[int, ...]:
        if not self.is_scoring or end <= self.num_scored:
            return ()
        return self.request.tokens[start + 1 : end + 1]

    def run(self, slot: int, num_reused: int, checkpoints: list[int]) -> None:
        self._move(SequenceStatus.RUNNING)
        self._slot = slot
        self.computed = num_reused
        self.checkpoints = checkpoints
        self._num_to_read = len(self.tokens)
        self.num_encoded = sum(placeholder.end <= num_reused for placeholder in self.request.media)
        self.shared_prefixes.clear()

    def release(self) -> None:
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
    sequence.cached_tokens = former.cached_tokens
    sequence.num_preemptions = former.num_preemptions
    sequence.num_interruptions = former.num_interruptions
    sequence.num_padded = former.num_padded
    sequence.num_drafted = former.num_drafted
    sequence.num_accepted = former.num_accepted


TOKENS_PER_S = 16.0
"""Tokens of expected output that a second of earlier arrival is worth: 1,000 overtake 40 that arrive a minute
later. A rule of fairness, not a measured price."""


@dataclass(frozen=True)
class SequenceAdvance:
    sequence: Sequence
    samples: tuple[Sample, ...]
    """Several if a draft was correct, within `max_tokens`."""
    scores: tuple[TokenLogprob, ...]
    failure: str | None = None
    """Reason why its constraint cannot be followed. The caller must finish the sequence, as with `fault`."""
    fault: str | None = None

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or self.fault is not None


class PriorityPolicy:
    """Clients take turns; first come, first served. Keys never change, so that queues stay sorted."""

    def lane(self, sequence: Sequence) -> int:
        """Sequences of a smaller lane may preempt those of a larger one."""
        return sequence.request.priority

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return sequence.request.turns

    def key(self, sequence: Sequence) -> float:
        return sequence.arrived_s


class FifoPolicy(PriorityPolicy):
    def lane(self, sequence: Sequence) -> int:
        return Priority.INTERACTIVE

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return "", ""


class ShortestFirstPolicy(PriorityPolicy):
    """Shortest expected output first, compensated by waiting."""

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return "", ""

    def key(self, sequence: Sequence) -> float:
        return sequence.expected_output + TOKENS_PER_S * sequence.arrived_s


POLICIES = {"priority": PriorityPolicy, "fifo": FifoPolicy, "sjf": ShortestFirstPolicy}
