"""Tells whether the system kills processes for want of memory: its SIGKILL looks like any other."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

_VMSTAT = Path("/proc/vmstat")
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_LOOKS = 20
"""How many looks are kept: freeing memory may take seconds, and only then the death is noticed."""


class MemoryKiller:
    """Watches the kernel's count of its kills during one engine process's life, by a look now and then.

    Linux counts (since 4.13), over the whole machine, whatever container the victim was in. A guard in user
    space (earlyoom, systemd-oomd) counts nowhere.
    """

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._seen: deque[int | None] = deque(maxlen=_LOOKS)
        self.look()

    def look(self) -> None:
        """Read the count. To be called every half second or so; it takes 0.1 ms."""
        self._seen.append(self._count())

    @property
    def has_struck(self) -> bool:
        """The count has grown since the oldest look that is kept. False too where there is no count."""
        before, now = self._seen[0], self._count()
        return before is not None and now is not None and now > before

    def _count(self) -> int | None:
        try:
            found = _COUNT.search(self._vmstat.read_bytes())
        except OSError:
            return None
        return int(found[1]) if found else None
