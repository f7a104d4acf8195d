"""Estimates when a full queue has room again, from what the scheduler expects for those at its head."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN_S = 1.0
"""The answer where nothing is expected yet: the scheduler tells twice a second."""


def wait_until_left_s(expected_s: Sequence[float], num: int) -> float:
    """Seconds until `num` have left the queue. `expected_s` says when the first, the second, ... will.

    Those of whom nothing is known are taken to leave at the same rate.
    """
    if not expected_s:
        return UNKNOWN_S
    if num <= len(expected_s):
        return expected_s[num - 1]
    return expected_s[-1] * num / len(expected_s)
