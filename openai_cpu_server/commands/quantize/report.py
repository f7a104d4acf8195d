"""Writes what the command tells: the list of types, and the result for a model."""

from __future__ import annotations

from collections import Counter

from openai_cpu_server.commands.plain_text import bytes_text, columns
from openai_cpu_server.commands.quantize.conversion import Conversion
from openai_cpu_server.llama.gguf.file_types import FILE_TYPES
from openai_cpu_server.llama.gguf.tensor_types import tensor_type_named


def type_list() -> str:
    rows = [("type", "bits of most weights", "")]
    for kind in FILE_TYPES.values():
        bits = f"{tensor_type_named(kind.base).bits:.2f}" if kind.base else "-"
        remarks = [kind.remark, "needs --imatrix" if kind.needs_importance else ""]
        rows.append((kind.name, bits, "; ".join(filter(None, remarks))))
    return columns(rows, right=(1,))


def summary(title: str, conversion: Conversion, made_bytes: int) -> list[str]:
    """Sizes before and after, and how many tensors have each type."""
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
    """Lines about tensors whose rows are no multiple of a block; [] if there are none."""
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
    """The types and their numbers of tensors, the largest share first."""
    had = Counter(tensor.type for tensor in conversion.source.tensors)
    has = Counter(kind for _, kind in conversion.tensors)
    kinds = sorted({*had, *has}, key=lambda kind: (-kind.bits, kind.name))
    return [(f"tensors in {kind.name}", _shown(had[kind]), _shown(has[kind])) for kind in kinds]


def _shown(count: int) -> str:
    return str(count) if count else "-"
