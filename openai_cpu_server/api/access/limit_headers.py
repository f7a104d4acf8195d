"""`x-ratelimit-*` as OpenAI sends them."""

from __future__ import annotations

import math

from openai_cpu_server.api.access.meter import Quota
from openai_cpu_server.api.access.window import Window

NAMES = tuple(
    f"x-ratelimit-{what}-{unit}"
    for unit in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)


def limit_headers(quota: Quota, window: Window, *, held: int) -> dict[str, str]:
    """`held` is what running calls may still use."""
    unit = quota.unit.value
    return {
        f"x-ratelimit-limit-{unit}": str(quota.limit),
        f"x-ratelimit-remaining-{unit}": str(max(0, window.remaining(quota.limit) - held)),
        f"x-ratelimit-reset-{unit}": duration(window.reset_s),
    }


def duration(seconds: float) -> str:
    """Writes `0s`, `12ms`, `1.5s`, `6m0s`, `23h59m1s`; rounds up to milliseconds, or to seconds above a
    minute."""
    milliseconds = math.ceil(1000 * seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
