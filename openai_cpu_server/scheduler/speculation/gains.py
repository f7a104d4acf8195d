"""What drafts have brought, against the same progress without: where they lose, they are left for a while."""

from __future__ import annotations

from typing import NamedTuple

_FORGET = 0.98
"""What a further step leaves of those before: some 50 count.

This guards against drafts that lose against all predictions (tests/scheduler/test_gains.py tells when it must
act). `scripts/sensitivity.py speculation.gains._TRIAL` and the other names here: where drafts gain, no value
matters.
"""
_TRIAL = 32
"""Steps with drafts before anything is said of them."""
_ENOUGH = 8
"""Steps without drafts that say how far predictions of such are off."""
_FURTHEST = 3.0
"""How many times longer, or shorter, than predicted a step may count: the rest is a noisy neighbour."""
_PAUSE_MS = 10_000.0
"""How long drafts are left after their first loss: a trial of 32 steps then costs little of it."""
_LONGEST_PAUSE_MS = 32 * _PAUSE_MS
"""After losses in a row, each of which doubles the pause: five minutes, so that other texts get a chance."""


class Kind(NamedTuple):
    """A kind of steps: steps of one kind are compared with each other."""

    size: int
    """The number of sequences, in powers of two (its bit length)."""
    uses_model: bool
    """Whether the draft model takes part."""

    @classmethod
    def of(cls, num_sequences: int, *, uses_model: bool) -> Kind:
        return cls(num_sequences.bit_length(), uses_model)


class Done(NamedTuple):
    """A step that was computed, in which somebody could have had a draft."""

    num_sequences: int
    num_accepted: int
    """How many draft tokens were right."""
    plain_ms: float
    """The time that it was predicted to take without drafts."""
    predicted_ms: float
    """The time that it was predicted to take as it was computed, drafting included."""
    elapsed_ms: float
    """The time that it took, drafting included."""

    @property
    def worth_ms(self) -> float:
        """The time that the same tokens were predicted to take without drafts."""
        return self.plain_ms * (1 + self.num_accepted / self.num_sequences)

    @property
    def taken_ms(self) -> float:
        """The time that it took, kept within bounds around the predicted time."""
        shortest, longest = self.predicted_ms / _FURTHEST, self.predicted_ms * _FURTHEST
        return min(max(self.elapsed_ms, shortest), longest)


class Gains:
    """Knows for each kind of steps whether drafts have paid, and pauses them where they have not.

    Its clock counts only the time that steps take, so that a pause does not pass while nothing is done. A
    step is compared with what the cost model predicts for it without drafts, corrected by how long steps of
    that size without drafts really take. So contexts of different lengths, and steps with prompts, can be
    compared.
    """

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._plain: dict[int, _Account] = {}
        self._trials: dict[Kind, _Trial] = {}

    def allows(self, kind: Kind) -> bool:
        """Whether drafts in such steps are not paused."""
        trial = self._trials.get(kind)
        return trial is None or trial.paused_until_ms <= self._now_ms

    def pass_time(self, ms: float) -> None:
        """Let the clock go on by the time that a step took."""
        self._now_ms += ms

    def learn_plain(self, done: Done) -> None:
        """Learn from a step without drafts."""
        size = Kind.of(done.num_sequences, uses_model=False).size
        self._plain.setdefault(size, _Account()).book(done.worth_ms, done.taken_ms)

    def learn(self, kind: Kind, done: Done) -> None:
        """Learn from a step with drafts."""
        trial = self._trials.setdefault(kind, _Trial())
        trial.learn(done, self._slowness(kind.size), self._now_ms)

    def _slowness(self, size: int) -> float:
        """Real time divided by predicted time, of steps of this size without drafts; 1.0 if unknown."""
        account = self._plain.get(size)
        return 1.0 if account is None or account.num_steps < _ENOUGH else 1.0 / account.ratio


class _Account:
    """Sums of predicted and real times, in which old steps count less and less."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._worth_ms = 0.0
        self._taken_ms = 0.0

    @property
    def ratio(self) -> float:
        """The predicted time without drafts, divided by the time that was taken: above 1 there is a gain."""
        return self._worth_ms / max(self._taken_ms, 1e-9)

    def book(self, worth_ms: float, taken_ms: float) -> None:
        self.num_steps += 1
        self._worth_ms = _FORGET * self._worth_ms + worth_ms
        self._taken_ms = _FORGET * self._taken_ms + taken_ms


class _Trial:
    """The drafts in steps of one kind. A loss pauses them for a while, the next loss for twice as long."""

    def __init__(self) -> None:
        self.paused_until_ms = 0.0
        self._pause_ms = _PAUSE_MS
        self._account = _Account()

    def learn(self, done: Done, slowness: float, now_ms: float) -> None:
        self._account.book(slowness * done.worth_ms, done.taken_ms)
        if self._account.num_steps < _TRIAL:
            return
        if self._account.ratio >= 1.0:
            self._pause_ms = _PAUSE_MS
            return
        self.paused_until_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        self._account = _Account()
