"""Attention over random pools, and its exact result in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from openai_cpu_server.kernels.graphs import AttentionCase, Floats, GgmlGraphs, GgmlType

Doubles = npt.NDArray[np.float64]


def attention_case(
    random: np.random.Generator,
    mask: Floats | None,
    *,
    rows: int = 1,
    cells: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 64,
    value_width: int | None = None,
    with_sinks: bool = False,
    **more: Any,
) -> AttentionCase:
    """Make random queries, keys and values. A mask, if there is one, gives the numbers of rows and cells."""
    if mask is not None:
        rows, cells = mask.shape
    k = random.standard_normal((cells, kv_heads, width), np.float32)
    v = random.standard_normal((cells, kv_heads, value_width or width), np.float32)
    return AttentionCase(
        q=2 * random.standard_normal((rows, heads, width), np.float32),
        k=k,
        v=k[:, :, : v.shape[2]] if more.get("values_in_keys") else v,
        mask=mask,
        scale=width**-0.5,
        sinks=random.standard_normal(heads, np.float32) if with_sinks else None,
        **more,
    )


def visible_to_mask(visible: npt.NDArray[np.bool_]) -> Floats:
    return np.where(visible, 0, -np.inf).astype(np.float32)


def random_pool(random: np.random.Generator, cells: int) -> Floats:
    """Mask of a step of decodes and prefills: shared prefixes, scattered cells, rows that see no cell."""
    visible: list[npt.NDArray[np.bool_]] = []
    places = random.permutation(cells) if random.random() < 0.5 else np.arange(cells)
    common = places[: random.integers(0, cells // 2)]
    free = list(places[len(common) :])
    while free and len(visible) < 90:
        length = min(len(free), int(random.integers(1, cells // 2 + 2)))
        own, free = free[:length], free[length:]
        new = min(length, int(random.choice([1, 1, 1, 5, 40])))
        shares = random.random() < 0.5
        for position in range(length - new, length):
            row = np.zeros(cells, np.bool_)
            row[common] = shares
            row[own[: position + 1]] = True
            visible.append(row)
        if random.random() < 0.2:
            visible.append(np.zeros(cells, np.bool_))
    random.shuffle(visible)
    return visible_to_mask(np.array(visible))


def exact_attention(graphs: GgmlGraphs, case: AttentionCase) -> Doubles:
    """Compute the definition over keys and values as their type stores them."""
    rows, heads, _ = case.q.shape
    group = heads // case.k.shape[1]
    k = np.repeat(graphs.as_stored(case.k, case.cell_type).astype(np.float64), group, axis=1)
    v = graphs.as_stored(case.v, case.value_type or case.cell_type).astype(np.float64)
    v = np.repeat(v, group, axis=1)
    scores = case.scale * np.einsum("rhd,chd->rhc", case.q.astype(np.float64), k)
    if case.soft_cap:
        scores = case.soft_cap * np.tanh(scores / case.soft_cap)
    if case.mask is not None:
        mask = graphs.as_stored(case.mask, GgmlType.F16).astype(np.float64)
        slopes = np.array([_slope(head, heads, case.max_bias) for head in range(heads)])
        scores = scores + slopes[:, None] * mask[:, None, :]
    if case.sinks is not None:
        sinks = np.broadcast_to(case.sinks.astype(np.float64)[None, :, None], (rows, heads, 1))
        scores = np.concatenate([scores, sinks], axis=2)
        v = np.concatenate([v, np.zeros((1, heads, case.v.shape[2]))])
    largest = scores.max(axis=2, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=2, keepdims=True)
    return np.einsum("rhc,chd->rhd", weights / np.where(total, total, 1), v)


def _slope(head: int, heads: int, max_bias: float) -> float:
    if not max_bias:
        return 1.0
    power = 2 ** int(np.log2(heads))
    first, further = 2.0 ** (-max_bias / power), 2.0 ** (-max_bias / 2 / power)
    return float(first ** (head + 1) if head < power else further ** (2 * (head - power) + 1))


def error(found: Floats, exact: Doubles) -> float:
    return float(np.max(np.abs(found - exact)) / np.max(np.abs(exact)))
