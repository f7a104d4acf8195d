"""Layout of weights: repacked by ggml, or as in the file, for our kernels.

The choice is stored, so that a replacement engine computes the same bits.
"""

from __future__ import annotations

import ctypes
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Kernels, WeightLayout
from openai_cpu_server.kernels.graphs import TILE_TYPES, Computing, LayoutGraphs, StoredWeights
from openai_cpu_server.kernels.library import KernelLibrary, library_path
from openai_cpu_server.llama.bindings import libggml
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files
from openai_cpu_server.llama.gguf.tensors import TENSOR_TYPES, Tensor, TensorType, file_tensors
from openai_cpu_server.llama.measure.measurements import Measured, MeasurementKey

logger = logging.getLogger(__name__)

STEPS = (1, 4, 16, 64)
"""Tokens of the compared steps."""
TILE_ROWS = (8, 12, 16, 24, 32, 64)
_VALUES = 1 << 21
"""Enough for threads and tiles, few enough for a tenth of a second."""
_EXPERTS = 4
_MOST_ROUNDS, _LEAST_ROUNDS, _TILE_ROUNDS = 7, 2, 5
_BUDGET_S = 0.4
_CLEARLY = 0.95
"""Largest share of the time at which another layout is chosen, because repacking delays the start and takes
memory."""
_LEAST_OUTPUTS = 64
_EMBEDDING, _OUTPUT, _OF_EXPERTS = "token_embd.weight", "output.weight", "_exps.weight"
_NOT_COMPARED = ("f32", "f64", "i8", "i16", "i32", "i64")


class LayoutKey(MeasurementKey, frozen=True, kw_only=True):
    VERSION = 2
    products: str | None
    """Instruction set of our kernel, or None if it is off."""
    tiles: str | None


def chosen_layout(
    options: EngineOptions, header: GgufHeader, kernels: Kernels, pause: Callable[[], None] = lambda: None
) -> WeightLayout:
    """Return the layout of the options, else the stored or the faster one.

    Without a folder to store it, weights stay unchanged.
    """
    layout = None
    if options.cost_dir is not None:
        layouts = Measured(Path(options.cost_dir), LayoutKey, WeightLayout)
        key = LayoutKey.here(
            header.path, products=kernels.products.instruction_set, tiles=kernels.tiles.instruction_set
        )
        layout = layouts.get(key)
        if layout is None:
            started = time.monotonic()
            layout = faster_layout(list(timed_products(header, kernels, pause)))
            if layouts.put(key, layout):
                ms = 1000 * (time.monotonic() - started)
                logger.info("weights: %s (measured once for a file, in %.0f ms)", layout, ms)
            else:
                layout = None  # the engine that replaces this one would find something else
    return _with_option(layout or WeightLayout(), options)


def use_layout(layout: WeightLayout, kernels: Kernels) -> None:
    if kernels.products.is_on:
        _library().leave([kind.number for kind in TENSOR_TYPES.values() if kind.name in layout.left_to_ggml])
    if kernels.tiles.is_on:
        rows = dict(layout.tile_rows)
        for kind in TILE_TYPES:
            _library().use_tiles_from(kind, rows.get(TENSOR_TYPES[kind].name, 0))


def stored_layout(options: EngineOptions, header: GgufHeader) -> WeightLayout:
    stored = []
    if options.cost_dir is not None:
        stored = Measured(Path(options.cost_dir), LayoutKey, WeightLayout).of_model(header.path)
    return _with_option(stored[0][1] if stored else WeightLayout(), options)


def _with_option(layout: WeightLayout, options: EngineOptions) -> WeightLayout:
    return layout if options.repack is None else msgspec.structs.replace(layout, repacked=options.repack)


def _library() -> KernelLibrary:
    return KernelLibrary(ctypes.CDLL(str(library_path())))


class _Group(NamedTuple):
    type: TensorType
    num_values: int
    num_experts: int
    """1 for matrices that all tokens use."""
    num_used: int
    sample: StoredWeights

    def rows(self, tokens: int) -> int:
        return max(1, tokens * self.num_used // self.num_experts)

    def values(self, tokens: int) -> float:
        """Weights that a step multiplies; of experts those that its tokens select."""
        return self.num_values * min(1.0, tokens * self.num_used / self.num_experts)


class ProductTimes(NamedTuple):
    type: str
    ours: Mapping[int, float] | None
    """Times, or None if our kernel leaves them to ggml."""
    ggml: Mapping[int, float]
    repacked: Mapping[int, float] | None
    """Times, or None if ggml does not repack them."""
    are_experts: bool = False
    tile_speeds: Mapping[int, float] | None = None
    """Rows -> speed of tiles relative to our other kernel, or to ggml's; None if they are off."""


def least_tile_rows(speeds: Mapping[int, float]) -> int | None:
    least = None
    for rows, speed in sorted(speeds.items(), reverse=True):
        if speed <= 1:
            break
        least = rows
    return least


def faster_layout(groups: Sequence[ProductTimes]) -> WeightLayout:
    by_type = defaultdict(list)
    for group in groups:
        by_type[group.type].append(group)
    left_to_ggml, plain, repacked, tile_rows = [], [], [], []
    for name, same in by_type.items():
        least = [least_tile_rows(group.tile_speeds) for group in same if group.tile_speeds is not None]
        if least:
            tile_rows.append((name, None if None in least else max(rows for rows in least if rows)))
        ours = [group.ggml if group.ours is None else group.ours for group in same]
        ggml = [group.ggml for group in same]
        if _ratio(ggml, ours) <= _CLEARLY:
            left_to_ggml.append(name)
            ours = ggml
        plain += ours
        repacked += [times if g.repacked is None else g.repacked for g, times in zip(same, ours, strict=True)]
    layout = WeightLayout(left_to_ggml=tuple(sorted(left_to_ggml)), tile_rows=tuple(sorted(tile_rows)))
    if all(group.repacked is None for group in groups):
        return layout
    ratio = _ratio(repacked, plain)
    return msgspec.structs.replace(layout, repacked=ratio <= _CLEARLY, repacked_cost=round(ratio, 3))


def _ratio(times: Sequence[Mapping[int, float]], others: Sequence[Mapping[int, float]]) -> float:
    logs = [math.log(sum(one[n] for one in times) / sum(one[n] for one in others)) for n in STEPS]
    return math.exp(sum(logs) / len(logs))


def timed_products(
    header: GgufHeader, kernels: Kernels, pause: Callable[[], None] = lambda: None
) -> Iterator[ProductTimes]:
    """Time each weight type, experts apart."""
    library = _library() if kernels.products.is_on or kernels.tiles.is_on else None
    graphs, groups = LayoutGraphs(libggml), list(_groups(header))
    for group in groups:
        rows, more = {group.rows(n) for n in STEPS}, TILE_ROWS if kernels.tiles.is_on else ()
        with (
            graphs.plain(group.sample, sorted(rows.union(more))) as plain,
            graphs.repacked(group.sample, sorted(rows)) as repacked,
        ):
            pause()
            speeds = {n: _tile_speed(group.type, plain[n]) for n in more} or None
            plain = {n: plain[n] for n in rows}
            yield _raced(group, library, plain, repacked, speeds, _BUDGET_S / len(groups), pause)


def _tile_speed(kind: TensorType, compute: Computing) -> float:
    library, best = _library(), {None: math.inf, 1: math.inf}
    for _ in range(_TILE_ROUNDS):
        for least, seconds in best.items():
            library.use_tiles_from(kind.number, least)
            best[least] = min(seconds, _cpu_s(compute))
    return best[None] / best[1]


def _cpu_s(compute: Computing) -> float:
    """CPU time of one thread does not depend on other processes."""
    started = time.thread_time()
    compute(1)
    return time.thread_time() - started


def _raced(
    group: _Group,
    library: KernelLibrary | None,
    plain: Mapping[int, Computing],
    repacked: Mapping[int, Computing] | None,
    tile_speeds: Mapping[int, float] | None,
    budget_s: float,
    pause: Callable[[], None],
) -> ProductTimes:
    ways = (
        {"ggml": plain} | ({"repacked": repacked} if repacked else {}) | ({"ours": plain} if library else {})
    )
    tile_rows = least_tile_rows(tile_speeds or {})
    best: dict[tuple[str, int], float] = defaultdict(lambda: math.inf)
    end = time.monotonic() + budget_s
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() > end:
            break
        pause()
        for name, computing in ways.items():
            if library is not None:
                library.leave(() if name == "ours" else (group.type.number,))
                library.use_tiles_from(group.type.number, tile_rows if name == "ours" else None)
            for rows, compute in computing.items():
                best[name, rows] = min(best[name, rows], _cpu_s(compute))
    if library is not None:
        library.leave(())
        library.use_tiles_from(group.type.number, 0)
    found = {
        name: {n: best[name, group.rows(n)] * group.values(n) / group.sample.num_values for n in STEPS}
        for name in ways
    }
    return ProductTimes(
        group.type.name,
        found.get("ours"),
        found["ggml"],
        found.get("repacked"),
        are_experts=group.sample.num_experts is not None,
        tile_speeds=tile_speeds,
    )


def _groups(header: GgufHeader) -> Iterator[_Group]:
    num_used = header.arch_int("expert_used_count") or 1
    tensors = [
        (path, tensor)
        for path in model_files(header)
        for tensor in file_tensors(header if path == header.path else GgufHeader(path))
    ]
    has_output = any(tensor.name == _OUTPUT for _, tensor in tensors)
    by_kind: dict[tuple[int, bool], list[tuple[Path, Tensor]]] = defaultdict(list)
    for path, tensor in tensors:
        is_matrix = len(tensor.shape) == 2 or _OF_EXPERTS in tensor.name
        # Embeddings are multiplied only if they also serve as the output.
        is_output = "embd" not in tensor.name or (tensor.name == _EMBEDDING and not has_output)
        if is_matrix and is_output and tensor.type.name not in _NOT_COMPARED:
            by_kind[tensor.type.number, len(tensor.shape) == 3].append((path, tensor))
    for (_, is_of_experts), matrices in by_kind.items():
        values: dict[tuple[int, ...], int] = defaultdict(int)
        for _, tensor in matrices:
            values[tensor.shape] += tensor.num_values
        shape = max(values, key=lambda each: values[each])
        path, first = next((path, tensor) for path, tensor in matrices if tensor.shape == shape)
        yield _Group(
            type=first.type,
            num_values=sum(values.values()),
            num_experts=shape[2] if is_of_experts else 1,
            num_used=num_used if is_of_experts else 1,
            sample=_sample(path, first),
        )


def _sample(path: Path, tensor: Tensor) -> StoredWeights:
    depth, outputs, *experts = tensor.shape
    num_experts = min(_EXPERTS, experts[0]) if experts else None
    some = max(_LEAST_OUTPUTS, _VALUES // (depth * (num_experts or 1)) // _LEAST_OUTPUTS * _LEAST_OUTPUTS)
    num_rows, row_bytes = min(outputs, some), tensor.type.num_bytes(depth)
    with path.open("rb") as file:
        parts = []
        for expert in range(num_experts or 1):
            file.seek(tensor.start + expert * outputs * row_bytes)
            parts.append(file.read(num_rows * row_bytes))
    return StoredWeights(
        type=tensor.type.number, depth=depth, outputs=num_rows, num_experts=num_experts, data=b"".join(parts)
    )
