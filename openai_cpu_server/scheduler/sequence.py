"""One sequence in the scheduler: its tokens, how far they are computed, where it stands."""

from __future__ import annotations

import enum

from openai_cpu_server.contract.request import GenerationRequest


class Status(enum.Enum):
    WAITING = "waiting"
    """Holds no slot and no KV cells."""
    RUNNING = "running"
    """Holds a slot, and the blocks that the ledger says."""
    FINISHED = "finished"
    """Gone; holds nothing."""


_MOVES = {
    Status.WAITING: {Status.RUNNING, Status.FINISHED},
    Status.RUNNING: {Status.WAITING, Status.FINISHED},
    Status.FINISHED: set[Status](),
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
        """`output`: generated before a crash; `beginning`: what its constraint forces behind that.

        `expected_output`: tokens; None: as many as it may have.
        """
        self.request = request
        self.arrival = arrival
        """How many came before it."""
        self.arrived_s = arrived_s
        self.tokens = [*request.tokens, *output, *beginning]
        self.computed = 0
        self.num_scored = 0 if request.prompt_logprobs and not output else len(request.tokens) - 1
        """Prompt positions whose successor's log-probability has been reported, or is not asked for."""
        self.has_queued = False
        """There was no place for it when it came, or it was released since."""
        self.cached_tokens: int | None = None
        """Prompt tokens that were shared or restored when it first ran, instead of computed."""
        self.expected_output = request.max_tokens if expected_output is None else expected_output
        """As it was foreseen when it came: it never changes, for queues are sorted by it."""
        self.num_preemptions = 0
        self.num_interruptions = 0
        self.num_padded = 0
        """Throw-away tokens in the steps that it took part in."""
        self.num_drafted = 0
        """Draft tokens that were computed for it."""
        self.num_accepted = 0
        """Of these, those that turned out right."""
        self.is_staged = False
        """Its cells, if it has any, are beside the pool."""
        self.kinship: dict[int, int] = {}
        """By arrival of another: length of the common prefix of these tokens and its prompt."""
        self._num_to_read = len(self.tokens)
        """Tokens that it had when it last began to run."""
        self._num_reused = 0
        """Of these, computed by others."""
        self._status = Status.WAITING
        self._slot: int | None = None

    @property
    def status(self) -> Status:
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
    def is_decoding(self) -> bool:
        """What is pending was generated since it runs: a sampled token, and those forced behind it."""
        return self.computed >= self._num_to_read - 1

    @property
    def is_newcomer(self) -> bool:
        """It came, found a slot at once, and nothing was computed of it yet."""
        found_slot = self._status is Status.RUNNING and not self.has_queued
        return found_slot and self.computed == self._num_reused

    @property
    def can_be_staged(self) -> bool:
        """It reads its prompt, and nothing of it is in the pool."""
        return not self.is_decoding and (self.is_staged or self.computed == 0)

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.request.tokens) :])

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.request.tokens)

    @property
    def remaining(self) -> int:
        """Output tokens that may still come."""
        return self.request.max_tokens - self.num_output

    @property
    def reusable(self) -> int:
        """Tokens whose cells may come from elsewhere: neither the last, nor any that must give logits."""
        return self.num_scored if self.is_scoring else len(self.tokens) - 1

    @property
    def is_scoring(self) -> bool:
        return self.num_scored < len(self.request.tokens) - 1

    def targets(self, start: int, end: int) -> tuple[int, ...]:
        """The prompt tokens that follow positions start .. end-1, if they are to be scored."""
        if not self.is_scoring or end <= self.num_scored:
            return ()
        return self.request.tokens[start + 1 : end + 1]

    def run(self, slot: int, num_reused: int) -> None:
        """It gets a slot, in which the cells of its first `num_reused` tokens are already."""
        self._move(Status.RUNNING)
        self._slot = slot
        self.computed = self._num_reused = num_reused
        self.is_staged = False
        self._num_to_read = len(self.tokens)
        self.kinship.clear()

    def release(self) -> None:
        """Back to waiting, without cells: all tokens are computed again later."""
        self._move(Status.WAITING)
        self._slot = None
        self.computed = 0
        self.num_preemptions += 1
        self.has_queued = True

    def finish(self) -> None:
        self._move(Status.FINISHED)
        self._slot = None

    def _move(self, to: Status) -> None:
        assert to in _MOVES[self._status], f"{self.request.id}: {self._status.value} -> {to.value}"
        self._status = to
