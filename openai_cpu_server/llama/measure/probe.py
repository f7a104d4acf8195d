"""Times steps of a backend as they are computed for requests, in slots that the probe opens and closes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Backend, Close, Drop, Open, Restore, Save, Span, Step

_SAMPLING = Sampling(seed=0)
"""OpenAI's defaults: drawing a token is part of a step's cost."""
_BLOCK = -1
"""The number of the probe's saved block. The cache's numbers are not negative."""


class Disturbed(Exception):
    """Other work came up. The time that was being measured says nothing."""


class Probe:
    """Times steps while no request is served: the backend must have no open slot.
    It leaves none, disturbed or not."""

    def __init__(self, backend: Backend, is_wanted: Callable[[], bool] = lambda: False) -> None:
        """`is_wanted` says whether there is other work; it is asked before every step."""
        self._backend = backend
        self._is_wanted = is_wanted
        self._held: dict[int, int] = {}
        """The number of tokens in each open slot."""
        self._saved = 0
        """The number of tokens in the saved block."""
        self._random = random.Random(0)

    def held(self, slot: int) -> int:
        """The number of tokens that the slot holds."""
        return self._held.get(slot, 0)

    def compute(self, sizes: Mapping[int, int]) -> float:
        """Milliseconds of a step that adds `sizes[slot]` tokens to each slot and samples a token in each.

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
        """Give new slots a copy of the source's cells. This works only where cells can be saved."""
        self.save(source)
        self.restore(slots)
        self.drop()

    def save(self, source: int) -> None:
        """Keep a copy of the source's cells outside of the pool, until `drop`."""
        self._saved = self._held[source]
        self._backend.execute(Step(verbs=(Save(source, 0, self._saved, _BLOCK),)))

    def restore(self, slots: Sequence[int]) -> None:
        """Give new slots the cells that were saved."""
        self._open(slots)
        restored = tuple(Restore(_BLOCK, slot, 0, self._saved) for slot in slots)
        self._backend.execute(Step(verbs=restored))
        self._held.update(dict.fromkeys(slots, self._saved))

    def drop(self) -> None:
        """Free what was saved."""
        self._backend.execute(Step(verbs=(Drop(_BLOCK),)))
        self._saved = 0

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
            if self._saved:
                self.drop()
