"""Facts about a model and its adapters, and the protocols of a native model and its tokenizer."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.offload import DevicePlacement


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """Adapter, identified by its content."""

    name: str
    path: str
    digest: str
    """SHA-256 in hex, which the engine checks."""
    scale: float = 1.0
    """Factor of the adapter's own scale (alpha / rank)."""

    @property
    def key(self) -> str:
        """Equal only for equal names, contents and scales."""
        return f"{self.name}@{self.digest[:32]}@{self.scale!r}"


def adapter_name(key: str) -> str:
    return key.rsplit("@", 2)[0]


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    rank: int
    num_tensors: int
    size_bytes: int


class AdapterState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class AdapterStatus(msgspec.Struct, frozen=True, kw_only=True):
    adapter: Adapter
    state: AdapterState
    loaded: LoadedAdapter | None = None
    reason: str | None = None


TILE_TOKENS = 16
"""Rows of a tile in ggml's matrix kernels, by which costs grow in stairs (docs/measurements.md)."""


class CostCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a step: a table over its tokens, plus a cost for the cells that they attend to."""

    step_ms: tuple[tuple[int, float], ...]
    """Points of a staircase (tokens, milliseconds) without attention, ascending by tokens."""
    attended_ms: float
    state_ms: float = 0.0
    """Time for each state that a pass reads and writes."""


def attended_pairs(start: int, num_tokens: int) -> int:
    return num_tokens * start + num_tokens * (num_tokens - 1) // 2


class ModelKind(enum.Enum):
    GENERATES = "generates"
    EMBEDS = "embeds"
    RERANKS = "reranks"


class KernelState(msgspec.Struct, frozen=True, kw_only=True):
    instruction_set: str | None = None
    """Name such as `avx512vnni`, or None if off."""
    why_off: str = ""

    @classmethod
    def off(cls, why: str) -> KernelState:
        return cls(why_off=why)

    @property
    def is_on(self) -> bool:
        return self.instruction_set is not None

    def __str__(self) -> str:
        return self.instruction_set or f"off: {self.why_off}"


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    attention: KernelState = KernelState.off("not asked for")
    products: KernelState = KernelState.off("not asked for")
    recurrent: KernelState = KernelState.off("not asked for")
    """Delta nets, scans, short convolutions."""
    elementwise: KernelState = KernelState.off("not asked for")
    tiles: KernelState = KernelState.off("not asked for")
    """Products of many rows, by AMX."""
    attention_tiles: KernelState = KernelState.off("not asked for")
    recurrent_tiles: KernelState = KernelState.off("not asked for")

    @classmethod
    def off(cls, why: str) -> Kernels:
        return cls(**dict.fromkeys(cls.__struct_fields__, KernelState.off(why)))

    @property
    def described(self) -> dict[str, str]:
        return {name: str(state) for name, state in msgspec.structs.asdict(self).items()}

    @property
    def instruction_sets(self) -> dict[str, str | None]:
        return {name: state.instruction_set for name, state in msgspec.structs.asdict(self).items()}

    def __str__(self) -> str:
        return ", ".join(f"{name} {state}" for name, state in self.described.items())


class WeightLayout(msgspec.Struct, frozen=True, kw_only=True):
    repacked: bool = False
    repacked_cost: float | None = None
    """Relative time of products with repacked weights, or None if not measured."""
    left_to_ggml: tuple[str, ...] = ()
    """Weight types that ggml multiplies faster."""
    tile_rows: tuple[tuple[str, int | None], ...] = ()
    """Rows from which tiles multiply a weight type faster, or None for never."""

    def __str__(self) -> str:
        facts = ["repacked" if self.repacked else "as in the file"]
        if self.repacked_cost is not None:
            facts.append(f"repacked they take {self.repacked_cost:.2f} of the time")
        if self.left_to_ggml:
            facts.append(f"ggml multiplies {', '.join(self.left_to_ggml)}")
        if self.tile_rows:
            by_type = (f"{name} {'never' if rows is None else rows}" for name, rows in self.tile_rows)
            facts.append(f"tiles from so many rows on: {', '.join(by_type)}")
        return "; ".join(facts)


_COMMON_CELL_BYTES = 2**14


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    description: str
    """llama.cpp's own, such as `llama 7B Q4_K - Medium`."""
    architecture: str
    num_parameters: int
    file_bytes: int
    vocab_size: int
    context_trained: int
    kv_tokens: int
    kv_bytes_per_token: int
    kv_type: str
    max_seqs: int
    max_step_tokens: int
    max_step_outputs: int
    threads: int
    end_tokens: frozenset[int]
    state_bytes: int = 0
    """Bytes of each sequence's state, or 0. A sequence can begin only where a state is saved or stands
    now."""
    max_draft: int | None = None
    """Tokens that can be taken back, or None for any number."""
    draft_cost: float | None = None
    """Relative cost of a drafted token, or None without a source of drafts."""
    draft_head: str | None = None
    """single, chained or shared; None without one."""
    draft_most: int | None = None

    kernels: Kernels = Kernels()
    weights: WeightLayout = WeightLayout()
    placement: DevicePlacement | None = None
    """Unset if the CPU computes everything."""
    draft_placement: DevicePlacement | None = None
    adapters: tuple[LoadedAdapter, ...] = ()
    kind: ModelKind = ModelKind.GENERATES
    embedding_size: int = 0
    """Numbers in a vector or scores of a pair; 0 for a model that generates text."""
    labels: tuple[str, ...] = ()
    max_input_tokens: int = 0
    sees: bool = False
    sound_rate: int = 0
    """Samples per second that the projector takes, or 0."""

    @property
    def hears(self) -> bool:
        return self.sound_rate > 0

    @property
    def takes_media(self) -> bool:
        return self.sees or self.hears

    @property
    def state_tokens(self) -> int:
        """Tokens whose cells are as large as a state; without cells, of a common size."""
        return -(-self.state_bytes // (self.kv_bytes_per_token or _COMMON_CELL_BYTES))

    @property
    def context_limit(self) -> int:
        """Maximum tokens of a request with its output, or of an input to embed."""
        if self.kind is not ModelKind.GENERATES:
            return self.max_input_tokens
        return min(self.context_trained, self.kv_tokens)

    @property
    def computed_by(self) -> dict[str, str]:
        table = {**self.kernels.described, "weights": str(self.weights)}
        if self.placement is not None:
            table["device"] = str(self.placement)
        if self.draft_placement is not None:
            table["device of the draft model"] = str(self.draft_placement)
        return table

    def drafts_by(self, states: Iterable[object]) -> dict[str, str]:
        """Return the sources of drafts beside prompt lookup."""
        if self.draft_cost is None:
            return {}
        source = "a draft model" if self.draft_head is None else f"a prediction head ({self.draft_head})"
        return {"drafts": "; ".join([source, *map(str, states)])}

    @property
    def summary(self) -> str:
        pool_mib = self.kv_tokens * self.kv_bytes_per_token / 2**20
        pool = f"{self.kv_tokens} KV tokens ({self.kv_type}, {pool_mib:.0f} MiB)"
        capacity = f"{pool}, {self.max_seqs} sequences at once"
        if self.kind is not ModelKind.GENERATES:
            limit = f"an input of up to {self.max_input_tokens} tokens"
            capacity = f"{self.kind.value}: {self.embedding_size} numbers for {limit}"
        parts = [
            f"{self.description}, {capacity}, {self.threads} threads, kernels: {self.kernels}",
            f"weights {self.weights}",
        ]
        parts += [] if self.placement is None else [str(self.placement)]
        parts += [] if self.draft_placement is None else [f"draft model: {self.draft_placement}"]
        return "; ".join(parts)


class ThreadControl(Protocol):
    @property
    def most(self) -> int: ...

    def use(self, count: int) -> None: ...

    def waits_s(self) -> Mapping[int, float]:
        """Time by thread without a core, or {} without a count."""

    def idle_s(self) -> float: ...

    def throttled_s(self) -> float:
        """Time in which a quota stopped all threads."""


class NativeModel(Protocol):
    """Other threads may call only `interrupt` and `measure`."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def threads(self) -> ThreadControl: ...

    def warm_up(self) -> bool:
        """Use every part once. Return False if interrupted."""

    def interrupt(self) -> None:
        """Make the running or else the next `warm_up` or step return early."""

    def measure(self, size: MediaSize) -> MeasuredMedia: ...

    def close(self) -> None: ...


class FimTokens(msgspec.Struct, frozen=True):
    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


class SequenceMarks(msgspec.Struct, frozen=True):
    """Control tokens around a text, and between query and text."""

    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


class ControlToken(msgspec.Struct, frozen=True):
    """Token whose spelling counts as text unless requested otherwise."""

    text: str
    strips_before: bool = False
    """White space before the token belongs to it."""
    strips_behind: bool = False


class Tokenizer(Protocol):
    """Vocabulary of a model. Any thread may call it."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_text(self) -> str: ...

    @property
    def eos_text(self) -> str: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def adds_bos(self) -> bool:
        """`encode(..., add_special=True)` puts `bos` first."""

    @property
    def fim(self) -> FimTokens | None: ...

    @property
    def marks(self) -> SequenceMarks:
        """`begin` and `end` are those that `encode(..., add_special=True)` adds."""

    def least_tokens(self, text: str) -> int:
        """Lower bound without tokenizing, or 0."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """`parse_special` turns written control tokens (`<|im_end|>`) into tokens."""

    def encode_all(
        self, texts: Sequence[str], *, add_special: bool, parse_special: bool
    ) -> list[list[int]]: ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes, empty for control tokens unless `special`."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text, with U+FFFD for bytes that are not UTF-8."""
