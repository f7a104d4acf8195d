"""A model and its adapters, as the API process knows them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.offload import Placement


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter to load. A file with other content makes another adapter, even if it has the same name."""

    name: str
    """What requests call it."""
    path: str
    """A GGUF file."""
    digest: str
    """SHA-256 of the file, in hex. What the engine finds there must agree."""
    scale: float = 1.0
    """It multiplies the adapter's own scale (alpha / rank)."""

    @property
    def key(self) -> str:
        """What the engine and its caches know it by: equal for equal names, contents and scales only."""
        return f"{self.name}@{self.digest[:32]}@{self.scale!r}"


def adapter_name(key: str) -> str:
    """What requests call the adapter of this key."""
    return key.rsplit("@", 2)[0]


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an adapter that the engine has loaded."""

    key: str
    rank: int
    """The largest of its tensors."""
    num_tensors: int
    """The tensors of the model that it changes."""
    size_bytes: int
    """The memory that it takes."""


class RefusedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that the engine could not load."""

    key: str
    reason: str
    """One sentence."""


class AdapterState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    """It was refused; `reason` says why."""


class AdapterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What requests may ask for by `adapter.name`, or why not."""

    adapter: Adapter
    state: AdapterState
    loaded: LoadedAdapter | None = None
    """Set when it is ready."""
    reason: str | None = None


TILE_TOKENS = 16
"""The rows of a tile in ggml's matrix kernels: costs climb in such stairs (docs/measurements.md)."""


class CostCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts the time of a step: a table over its tokens, plus a price for the cells that they attend to.

    A token attends to the cells of its own sequence before it, those of the same step included.
    """

    step_ms: tuple[tuple[int, float], ...]
    """(tokens, milliseconds) without attention, by tokens ascending: points of a staircase."""
    attended_ms: float
    """Milliseconds per pair of a token and a cell that it attends to."""
    state_ms: float = 0.0
    """Milliseconds for each state that a pass over the weights reads and writes."""


def attended_pairs(start: int, num_tokens: int) -> int:
    """The number of pairs of a token at one of `num_tokens` positions
    from `start` on and a cell before it."""
    return num_tokens * start + num_tokens * (num_tokens - 1) // 2


class ModelKind(enum.Enum):
    """What a model is for; its file says so."""

    GENERATES = "generates"
    EMBEDS = "embeds"
    """Texts become vectors."""
    RERANKS = "reranks"
    """Pairs of a query and a text become scores."""


class KernelState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a kernel of ours computes in place of ggml's."""

    instruction_set: str | None = None
    """What it was compiled for, such as `avx512vnni`; None: it is off."""
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
    """Products of quantised weights with activations."""
    recurrent: KernelState = KernelState.off("not asked for")
    """Layers with a state for each sequence: delta nets, scans, short convolutions."""
    elementwise: KernelState = KernelState.off("not asked for")
    """Small operations between the products of experts."""

    @classmethod
    def off(cls, why: str) -> Kernels:
        return cls(**dict.fromkeys(cls.__struct_fields__, KernelState.off(why)))

    @property
    def described(self) -> dict[str, str]:
        """By kernel: its instruction set, or why it is off."""
        return {name: str(state) for name, state in msgspec.structs.asdict(self).items()}

    @property
    def instruction_sets(self) -> dict[str, str | None]:
        """By kernel; None: it is off."""
        return {name: state.instruction_set for name, state in msgspec.structs.asdict(self).items()}

    def __str__(self) -> str:
        return ", ".join(f"{name} {state}" for name, state in self.described.items())


class WeightLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's weights lie in memory, and which of them no kernel of ours multiplies."""

    repacked: bool = False
    """Rearranged by ggml for this CPU, in private memory, where it can; else as in the file."""
    repacked_cost: float | None = None
    """What products take with repacked weights, as a share of what they take without; None: not measured, or
    there are none that ggml repacks here."""
    left_to_ggml: tuple[str, ...] = ()
    """Types of weights that lie as in the file and that ggml multiplies faster than our kernel, by ggml's
    names."""

    def __str__(self) -> str:
        said = ["repacked" if self.repacked else "as in the file"]
        if self.repacked_cost is not None:
            said.append(f"repacked they take {self.repacked_cost:.2f} of the time")
        if self.left_to_ggml:
            said.append(f"ggml multiplies {', '.join(self.left_to_ggml)}")
        return "; ".join(said)


_COMMON_CELL_BYTES = 2**14


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model that was loaded, and what its native memory can do."""

    path: str
    description: str
    """llama.cpp's own description, such as `llama 7B Q4_K - Medium`."""
    architecture: str
    num_parameters: int
    file_bytes: int
    vocab_size: int
    context_trained: int
    """The number of tokens of context that the model was trained for."""
    kv_tokens: int
    """The number of cells in the KV pool."""
    kv_bytes_per_token: int
    kv_type: str
    max_seqs: int
    max_step_tokens: int
    max_step_outputs: int
    """The most positions of one step whose logits can be read."""
    threads: int
    end_tokens: frozenset[int]
    """Tokens that end a generation (EOS, EOT and their like)."""
    state_bytes: int = 0
    """Bytes of the state that each sequence has beside its cells, in recurrent and hybrid memories; 0: none.

    Every token changes it. So a sequence with a state can begin where another one's was saved, or stands just
    now; one without can begin behind any token that another has computed.
    """
    max_draft: int | None = None
    """The most tokens at a sequence's end that can be taken back; None: any number."""
    draft_cost: float | None = None
    """The rough cost of a token in the draft model, as a share of this model's;
    None: there is no draft model."""

    kernels: Kernels = Kernels()
    weights: WeightLayout = WeightLayout()
    placement: Placement | None = None
    """What of it is on a device; None: the CPU does all."""
    draft_placement: Placement | None = None
    """The same of its draft model."""
    adapters: tuple[LoadedAdapter, ...] = ()
    """Those that are loaded."""
    kind: ModelKind = ModelKind.GENERATES
    embedding_size: int = 0
    """Numbers in a vector, or a reranker's scores of one pair; 0 for a model that generates text."""
    labels: tuple[str, ...] = ()
    """Names of the classes that a reranker's scores are of, where its file has them."""
    max_input_tokens: int = 0
    """The longest input that can be embedded or scored; 0 for a model that generates text."""
    sees: bool = False
    """It takes pictures: a projector that sees was loaded with it."""
    sound_rate: int = 0
    """Samples a second of the sound that its projector takes; 0: it hears nothing."""

    @property
    def hears(self) -> bool:
        return self.sound_rate > 0

    @property
    def takes_media(self) -> bool:
        return self.sees or self.hears

    @property
    def state_tokens(self) -> int:
        """A state is as large as the cells of so many tokens; where there are no cells, of a common size."""
        return -(-self.state_bytes // (self.kv_bytes_per_token or _COMMON_CELL_BYTES))

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and output together, that one request can have; those of an input, where
        texts are embedded."""
        if self.kind is not ModelKind.GENERATES:
            return self.max_input_tokens
        return min(self.context_trained, self.kv_tokens)

    @property
    def computed_by(self) -> dict[str, str]:
        """By kernel of ours: its instruction set, or why it is off; and how the weights lie."""
        told = {**self.kernels.described, "weights": str(self.weights)}
        if self.placement is not None:
            told["device"] = str(self.placement)
        if self.draft_placement is not None:
            told["device of the draft model"] = str(self.draft_placement)
        return told

    @property
    def summary(self) -> str:
        """One line for the log."""
        if self.kind is not ModelKind.GENERATES:
            return (
                f"{self.description}, {self.kind.value}: {self.embedding_size} numbers for an input of up to "
                f"{self.max_input_tokens} tokens, {self.threads} threads, kernels: {self.kernels}; "
                f"weights {self.weights}{self._placed}"
            )
        pool_mib = self.kv_tokens * self.kv_bytes_per_token / 2**20
        pool = f"{self.kv_tokens} KV tokens ({self.kv_type}, {pool_mib:.0f} MiB)"
        return (
            f"{self.description}, {pool}, {self.max_seqs} sequences at once, {self.threads} threads, "
            f"kernels: {self.kernels}; weights {self.weights}{self._placed}"
        )

    @property
    def _placed(self) -> str:
        own = "" if self.placement is None else f"; {self.placement}"
        return own if self.draft_placement is None else f"{own}; draft model: {self.draft_placement}"


class ThreadControl(Protocol):
    """The threads that compute, and the cores that they may use."""

    @property
    def most(self) -> int:
        """So many compute where each gets its core."""
        ...

    def use(self, count: int) -> None:
        """Compute with so many, 1 to `most`, from the next step on."""
        ...

    def waits_s(self) -> Mapping[int, float]:
        """By thread, seconds so far in which it was ready and had no core; {} where the system does not
        tell."""
        ...

    def idle_s(self) -> float:
        """Seconds in which the cores had nothing to do, all of them together, so far."""
        ...

    def throttled_s(self) -> float:
        """Seconds in which all threads stood still because a quota of CPU time was used up, so far."""
        ...


class NativeModel(Protocol):
    """Owns a model and its memory, whatever it computes. Of these only `interrupt` and `measure` are for
    other threads."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def threads(self) -> ThreadControl: ...

    def warm_up(self) -> bool:
        """Use everything once, before the first step. False: `interrupt` has ended it; it can be repeated."""
        ...

    def interrupt(self) -> None:
        """Make the running `warm_up`, or step if it may be interrupted, return early, as `interrupted`.

        Later steps are not affected. Any thread may call it.
        """
        ...

    def measure(self, size: MediaSize) -> MeasuredMedia:
        """What stands in a prompt for a picture or a sound of this size."""
        ...

    def close(self) -> None: ...


class FimTokens(msgspec.Struct, frozen=True):
    """The control tokens of fill-in-the-middle models."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    """It begins the name of what the files belong to."""
    file: int | None = None
    """It begins the name of a file."""


class SequenceMarks(msgspec.Struct, frozen=True):
    """The control tokens that a tokenizer puts around a text, and those between a query and a text that a
    cross-encoder reads together."""

    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


class ControlToken(msgspec.Struct, frozen=True):
    """A token that stands for no text: its name, spelt in a text, becomes it only where that is wanted."""

    text: str
    strips_before: bool = False
    """White space before it belongs to it."""
    strips_behind: bool = False


class Tokenizer(Protocol):
    """A model's vocabulary. Any thread may call it."""

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
        """Whether `encode(..., add_special=True)` puts `bos` first."""
        ...

    @property
    def fim(self) -> FimTokens | None: ...

    @property
    def marks(self) -> SequenceMarks:
        """`begin` and `end` are what `encode(..., add_special=True)` adds."""
        ...

    def least_tokens(self, text: str) -> int:
        """A text has at least so many tokens, which is known at once; 0: nothing can be said."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text. `parse_special` turns control tokens that are
        written in it (`<|im_end|>`) into tokens."""
        ...

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        """`encode` of each text."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; b"" for control tokens unless `special`."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        ...
