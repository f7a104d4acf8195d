"""Which models have to go so that another fits into memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

_MIB = 1024 * 1024


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of what a model takes while it is loaded, in bytes."""

    weights: int
    """Its files, those of its draft model included."""
    cells: int
    """The KV pools of both."""
    buffers: int
    """What steps are computed in, and the process itself."""
    cache: int = 0
    """The most that its prefix cache may hold."""

    @property
    def total(self) -> int:
        return self.weights + self.cells + self.buffers + self.cache

    def __str__(self) -> str:
        return (
            f"{_mib(self.total)} (weights {_mib(self.weights)}, KV cells {_mib(self.cells)}, "
            f"buffers {_mib(self.buffers)}, prefix cache {_mib(self.cache)})"
        )


class ResidentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded, or being loaded."""

    name: str
    num_bytes: int
    last_use_s: float
    may_go: bool
    """It is not pinned, and has no requests."""


class MemoryBudget:
    """`limit_bytes` are for all models together."""

    def __init__(self, limit_bytes: int, *, option: str = "--memory") -> None:
        """`option`: what sets the limit, as users know it."""
        self.limit_bytes = limit_bytes
        self._option = option

    def why_never(self, name: str, need: MemoryNeed, pinned: Iterable[ResidentModel]) -> str | None:
        """The arithmetic, if it cannot even be loaded alone beside those that are pinned; None: it can."""
        stay = [one for one in pinned if one.name != name]
        left = self.limit_bytes - sum(one.num_bytes for one in stay)
        if need.total <= left:
            return None
        beside = "".join(f" - {_mib(one.num_bytes)} of '{one.name}', which is pinned" for one in stay)
        return (
            f"the model '{name}' needs {need}, and there are {_mib(max(0, left))} "
            f"({self._option} {self.limit_bytes // _MIB} MiB{beside})"
        )

    def to_unload(self, num_bytes: int, residents: Sequence[ResidentModel]) -> tuple[str, ...] | None:
        """Who has to go for so many bytes, the least recently used first, and nobody in vain.
        None: those who may go are not enough."""
        missing = num_bytes + sum(one.num_bytes for one in residents) - self.limit_bytes
        chosen: list[ResidentModel] = []
        for one in sorted(residents, key=lambda one: one.last_use_s):
            if missing > 0 and one.may_go and one.num_bytes > 0:
                chosen.append(one)
                missing -= one.num_bytes
        if missing > 0:
            return None
        return tuple(one.name for one in _spared(chosen, -missing))


def _spared(chosen: list[ResidentModel], spare_bytes: int) -> list[ResidentModel]:
    """Leave out those who need not go after all, the most recently used first."""
    kept = list(chosen)
    for one in reversed(chosen):
        if one.num_bytes <= spare_bytes:
            kept.remove(one)
            spare_bytes -= one.num_bytes
    return kept


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.0f} MiB"
