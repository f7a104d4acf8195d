"""The counts that tell how an engine has served."""

from __future__ import annotations

import msgspec


class Totals(msgspec.Struct):
    """Counted over the dispatcher's life."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
