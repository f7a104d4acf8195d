"""Times steps of a backend, computed as they are served: in slots of its own, which it closes again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Backend, Close, Drop, Open, Restore, Save, Span, Step

_SAMPLING = Sampling(seed=0)
"""OpenAI's defaults: what drawing a token costs is part of the step."""
_BLOCK = -1
"""Number of the probe's saved block, which lives within one call; the cache's are not negative."""


class Disturbed(Exception):
    """Something else is wanted. What was being timed says nothing."""


class Probe:
    """Use while nothing is served: the backend must have no open slot. Leaves none, disturbed or not."""

    def __init__(self, backend: Backend, is_wanted: Callable[[], bool] = lambda: False) -> None:
        """`is_wanted`: whether something else is; asked before every step."""
        self._backend = backend
        self._is_wanted = is_wanted
        self._held: dict[int, int] = {}
        """Tokens by open slot."""
        self._random = random.Random(0)

    def held(self, slot: int) -> int:
        """Tokens that the slot holds."""
        return self._held.get(slot, 0)

    @property
    def cells(self) -> int:
        """Taken in the pool."""
        return sum(self._held.values())

    def compute(self, sizes: Mapping[int, int]) -> float:
        """Milliseconds of a step with `sizes[slot]` tokens behind what each slot holds; all are sampled.

        Raises `Disturbed`.
        """
        if self._is_wanted():
            raise Disturbed
        self._open(slot for slot in sizes if slot not in self._held)
        step = Step(spans=tuple(self._span(slot, size) for slot, size in sizes.items()))
        started = time.perf_counter()
        result = self._backend.execute(step)
        seconds = time.perf_counter() - started
        if result.interrupted:
            raise Disturbed
        for slot, size in sizes.items():
            self._held[slot] += size
        return 1000 * seconds

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Give new slots cells of their own, the same as the source's. Only where cells can be saved."""
        end = self._held[source]
        self._open(slots)
        saved = Save(source, 0, end, _BLOCK)
        restored = tuple(Restore(_BLOCK, slot, 0, end) for slot in slots)
        self._backend.execute(Step(verbs=(saved, *restored, Drop(_BLOCK))))
        self._held.update(dict.fromkeys(slots, end))

    def close(self) -> None:
        """Free all slots."""
        self._backend.execute(Step(verbs=tuple(Close(slot) for slot in self._held)))
        self._held.clear()

    def _open(self, slots: Iterable[int]) -> None:
        opening = tuple(Open(slot, _SAMPLING, prompt=()) for slot in slots)
        if opening:
            self._backend.execute(Step(verbs=opening))
            self._held.update({verb.slot: 0 for verb in opening})

    def _span(self, slot: int, size: int) -> Span:
        vocab_size = self._backend.info.vocab_size
        tokens = tuple(self._random.randrange(vocab_size) for _ in range(size))
        return Span(slot, self._held[slot], tokens, sample=True)

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Disturbed):
            self.close()
