"""JSON values in Python, with exact numbers."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Union

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]


_LONGEST_NUMBER_BITS = 1_200


def is_finite(value: int | float) -> bool:
    """Whether a number is finite and not absurdly long."""
    return math.isfinite(value) if isinstance(value, float) else value.bit_length() <= _LONGEST_NUMBER_BITS


def exact(value: int | float) -> Decimal:
    """A float as it was written, not as it is stored: 0.1 is one tenth."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
