"""The blocks that the engine's prefix cache holds, for routers on other machines that ask now and then."""

from __future__ import annotations

from collections import deque

from openai_cpu_server.contract.replica import HeldUpdate, PrefixNews

_REMEMBERED = 256
"""Changes that are remembered one by one, ten a second at most. Who has not asked for longer gets all."""


class HeldBlocks:
    """A set of blocks with its last changes."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._changes: deque[PrefixNews] = deque(maxlen=_REMEMBERED)
        self._version = 0
        """Changes so far; `_changes` are the last ones of them."""

    def heard(self, news: PrefixNews) -> None:
        self._held.difference_update(news.dropped)
        self._held.update(news.saved)
        self._changes.append(news)
        self._version += 1

    def clear(self) -> None:
        """The process that held them is gone."""
        self._held.clear()
        self._changes.clear()
        self._version += 1

    def since(self, version: int | None) -> HeldUpdate:
        """What has changed since this version; None: it is asked for the first time."""
        missed = self._version - version if version is not None else None
        if missed is None or not 0 <= missed <= len(self._changes):
            return HeldUpdate(version=self._version, is_whole=True, saved=tuple(self._held))
        last = {name: is_saved for news in self._last(missed) for name, is_saved in _changes(news)}
        return HeldUpdate(
            version=self._version,
            saved=tuple(name for name, is_saved in last.items() if is_saved),
            dropped=tuple(name for name, is_saved in last.items() if not is_saved),
        )

    def _last(self, num: int) -> list[PrefixNews]:
        return list(self._changes)[len(self._changes) - num :]


def _changes(news: PrefixNews) -> list[tuple[int, bool]]:
    return [(name, False) for name in news.dropped] + [(name, True) for name in news.saved]
