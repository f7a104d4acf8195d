"""Uncoloured output, identical in a terminal, a pipe and a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_CUT_OFF = 1
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_COUNTS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


def show(text: str) -> None:
    """Print with a final line end. Ends the process if the reader is gone (`| head`)."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its end
        sys.exit(_CUT_OFF)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """`right`: right-aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def bytes_text(num_bytes: float) -> str:
    """Return decimal units with three digits or more: `7.53 MB`."""
    return _scaled(num_bytes, _UNITS) or f"{num_bytes:.0f} bytes"


def count_text(count: float) -> str:
    return _scaled(count, _COUNTS) or f"{count:.0f}"


def option_value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def printable(text: str) -> str:
    """Escape invisible characters and line ends."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _scaled(value: float, units: Sequence[tuple[int, str]]) -> str | None:
    for size, unit in units:
        if value >= size:
            scaled = value / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f} {unit}"
    return None
