"""Terminal output: list of types, progress, and result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from openai_cpu_server.cli.plain_text import bytes_text, columns
from openai_cpu_server.cli.quantize.conversion import Conversion
from openai_cpu_server.llama.gguf.header import FILE_TYPES
from openai_cpu_server.llama.gguf.tensors import tensor_type_named

_LINES_FROM_BYTES = 100_000_000
"""Smaller sources finish before anyone looks into a log."""
_PERCENT_PER_LINE = 10


class QuantizeBar:
    """Progress in bytes of the source. llama.cpp reports when a tensor begins."""

    def __init__(self, console: Console, what: str, tensors: Sequence[tuple[str, int]]) -> None:
        self._console = console
        self._tensors = tensors
        self._total = sum(num_bytes for _, num_bytes in tensors)
        self._done = 0
        self._shown_percent = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[tensor]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=self._total, tensor="")

    def begin(self, number: int) -> None:
        self._done = sum(num_bytes for _, num_bytes in self._tensors[: number - 1])
        self._bar.update(self._task, completed=self._done, tensor=self._tensors[number - 1][0])
        self._write_line()

    def end(self) -> None:
        self._bar.update(self._task, completed=self._total, tensor="writing to disk")

    def _write_line(self) -> None:
        percent = 100 * self._done // max(1, self._total)
        due = percent >= self._shown_percent + _PERCENT_PER_LINE
        if self._console.is_terminal or self._total < _LINES_FROM_BYTES or not due:
            return
        self._shown_percent = percent - percent % _PERCENT_PER_LINE
        self._console.print(
            f"quantize: {percent} % of {bytes_text(self._total)}", soft_wrap=True, highlight=False
        )

    def __enter__(self) -> QuantizeBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def type_list() -> str:
    rows = [("type", "bits of most weights", "")]
    for kind in FILE_TYPES.values():
        bits = f"{tensor_type_named(kind.base).bits:.2f}" if kind.base else "-"
        remarks = [kind.remark, "needs --imatrix" if kind.needs_importance else ""]
        rows.append((kind.name, bits, "; ".join(filter(None, remarks))))
    return columns(rows, right=(1,))


def summary(title: str, conversion: Conversion, made_bytes: int) -> list[str]:
    source = conversion.source
    had_bits = 8 * sum(tensor.num_bytes for tensor in source.tensors)
    weights = max(1, sum(tensor.num_values for tensor in source.tensors))
    rows = [
        ("", "before", "after"),
        ("size", bytes_text(source.file_bytes), bytes_text(made_bytes)),
        ("bits per weight", f"{had_bits / weights:.2f}", f"{8 * conversion.tensor_bytes / weights:.2f}"),
        *_mixture(conversion),
    ]
    return [title, *columns(rows, right=(1, 2)).splitlines()]


def fallback_lines(conversion: Conversion) -> list[str]:
    """Return lines about tensors whose rows are not a multiple of a block."""
    if not conversion.fallbacks:
        return []
    kinds = Counter((each.columns, each.block, each.wanted, each.got) for each in conversion.fallbacks)
    return [
        f"{len(conversion.fallbacks)} of {len(conversion.tensors)} tensors could not have the type that is"
        " meant for them:",
        *(
            f"  {count} with rows of {columns:,} values, no multiple of the {block} of {wanted}: {got}"
            for (columns, block, wanted, got), count in kinds.items()
        ),
    ]


def _mixture(conversion: Conversion) -> list[tuple[str, str, str]]:
    had = Counter(tensor.type for tensor in conversion.source.tensors)
    has = Counter(kind for _, kind in conversion.tensors)
    kinds = sorted({*had, *has}, key=lambda kind: (-kind.bits, kind.name))
    return [(f"tensors in {kind.name}", _shown(had[kind]), _shown(has[kind])) for kind in kinds]


def _shown(count: int) -> str:
    return str(count) if count else "-"
