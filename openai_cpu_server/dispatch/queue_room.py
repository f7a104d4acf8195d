"""When a full queue has room again, by what the scheduler expects of those at its head."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN_S = 1.0
"""Where nothing is expected yet: the scheduler tells twice a second."""


def wait_until_left_s(expected_s: Sequence[float], num: int) -> float:
    """Until `num` have left the queue. `expected_s`: when the first, the second, ... will, ascending.

    Beyond those of whom something is known, the others are taken to leave at the same rate.
    """
    if not expected_s:
        return UNKNOWN_S
    if num <= len(expected_s):
        return expected_s[num - 1]
    return expected_s[-1] * num / len(expected_s)
