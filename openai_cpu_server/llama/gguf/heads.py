"""Multi-token prediction heads, and files that only draft."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import NamedTuple

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import Tensor, file_tensors, model_tensors


class HeadKind(enum.Enum):
    SINGLE = "single"
    """One head drafts all further tokens, each from its own hidden row of the one before."""
    CHAINED = "chained"
    SHARED = "shared"
    """The head reads the model's own cells."""


class _Support(NamedTuple):
    kind: HeadKind
    is_cut: bool = False
    """True if llama.cpp computes hidden rows of outputs only."""
    needed: tuple[str, ...] = ()
    """Further tensors without which llama.cpp ends the process."""


_SINGLE = _Support(HeadKind.SINGLE)
_SINGLE_CUT = _Support(HeadKind.SINGLE, is_cut=True)
_SUPPORTED = {
    "bailingmoe3": _SINGLE,
    "cohere2moe": _SINGLE,
    "deepseek2": _SINGLE,
    "deepseek32": _SINGLE,
    "glm-dsa": _SINGLE,
    "glm4moe": _SINGLE,
    "nemotron_h_moe": _SINGLE,
    "qwen35": _SINGLE,
    "qwen35moe": _SINGLE,
    "qwen3next": _SINGLE_CUT,
    "hy_v3": _Support(HeadKind.CHAINED),
    "mimo2": _Support(HeadKind.CHAINED, is_cut=True, needed=("attn_qkv.weight",)),
    "step35": _Support(HeadKind.CHAINED, is_cut=True),
    "gemma4-assistant": _Support(HeadKind.SHARED, is_cut=True),
}
"""Tested architectures. For others llama.cpp has no graph, or ends the process."""
_MODEL_OF_ASSISTANT = {"gemma4-assistant": "gemma4"}
_OTHER_DRAFTERS = {"eagle3": "EAGLE-3", "dflash": "DFlash or DSpark"}
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_NEEDED = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight")
"""llama.cpp ends the process without them."""
_NEEDED_PARTS = ("attn_q", "attn_output", "ffn_")


class PredictionHead(NamedTuple):
    header: GgufHeader
    kind: HeadKind
    num_heads: int
    is_cut: bool

    @property
    def num_layers(self) -> int:
        """Layers with cells."""
        return 0 if self.kind is HeadKind.SHARED else self.num_heads

    @property
    def most_tokens(self) -> int | None:
        """Longest draft, or None for any."""
        return self.num_heads if self.kind is HeadKind.CHAINED else None


def head_count(header: GgufHeader) -> int:
    return header.arch_int("nextn_predict_layers") or 0


def may_have_head(header: GgufHeader) -> bool:
    return header.architecture in _SUPPORTED or header.architecture in _MODEL_OF_ASSISTANT.values()


def head_in(header: GgufHeader) -> PredictionHead | None:
    """Return None without a head. Raises `StartupError` for one that cannot draft."""
    architecture, count = header.architecture, head_count(header)
    if architecture in _OTHER_DRAFTERS:
        raise StartupError(
            f"{header.path} drafts by {_OTHER_DRAFTERS[architecture]}, which this server does not compute; "
            "it takes heads of multi-token prediction, and small models with the same tokenizer."
        )
    if not count:
        return None
    support = _SUPPORTED.get(architecture)
    if support is None:
        raise StartupError(f"{header.path}: the head of {architecture} models cannot draft here.")
    if support.kind is HeadKind.SINGLE and count > 1:
        raise StartupError(
            f"{header.path} has {count} heads, but llama.cpp computes one of {architecture} models."
        )
    head = PredictionHead(header, support.kind, count, support.is_cut)
    if support.kind is not HeadKind.SHARED:
        _require_tensors(head)
    return head


def _require_tensors(head: PredictionHead) -> None:
    header = head.header
    end = layer_count(header)
    names = _by_layer(model_tensors(header))
    for layer in range(end - head.num_heads, end):
        found = names.get(layer, set())
        needed = (*_NEEDED, *_SUPPORTED[header.architecture].needed)
        missing = [name for name in needed if name not in found]
        missing += [part for part in _NEEDED_PARTS if not any(name.startswith(part) for name in found)]
        if missing:
            raise StartupError(
                f"{header.path} announces a head, but has no tensor blk.{layer}.{missing[0]} of it."
            )


def head_pattern(header: GgufHeader) -> str | None:
    """Return a regular expression for the heads' tensors, or None."""
    end = layer_count(header)
    layers = "|".join(map(str, range(end - head_count(header), end)))
    return rf"^blk\.({layers})\." if layers else None


def _by_layer(tensors: Iterable[Tensor]) -> dict[int, set[str]]:
    names: dict[int, set[str]] = {}
    for tensor in tensors:
        if (found := _LAYER.fullmatch(tensor.name)) is not None:
            names.setdefault(int(found[1]), set()).add(found[2])
    return names


def only_drafts(header: GgufHeader) -> bool:
    if header.architecture in _OTHER_DRAFTERS or header.architecture in _MODEL_OF_ASSISTANT:
        return True
    is_whole = (header.get_int("split.count") or 1) == 1
    return bool(head_count(header)) and is_whole and 0 not in _by_layer(file_tensors(header))


def require_model(header: GgufHeader) -> None:
    if only_drafts(header):
        raise StartupError(f"{header.path} is not a model: it drafts for one, as --draft-model of that.")


def why_unfit(head: PredictionHead, model: GgufHeader) -> str | None:
    """Return None if the head in its own file fits the model."""
    own = head.header
    wanted = _MODEL_OF_ASSISTANT.get(own.architecture, own.architecture)
    if model.architecture != wanted:
        return f"it is for {wanted} models, and the model is one of {model.architecture}"
    is_shared = head.kind is HeadKind.SHARED
    width = own.arch_int("embedding_length_out" if is_shared else "embedding_length")
    if width != model.arch_int("embedding_length"):
        return "it is for a model of another width"
    if own.array_length("tokenizer.ggml.tokens") != model.array_length("tokenizer.ggml.tokens"):
        return "it is for a model with another vocabulary"
    if is_shared and not _reads_cells(own, model):
        return "it reads other keys and values than the model keeps"
    return None


def _reads_cells(assistant: GgufHeader, model: GgufHeader) -> bool:
    """Layers with a window read those of the model's last layer but one, others those of the last."""
    names = ("key_length", "value_length", "key_length_swa", "value_length_swa", "sliding_window")
    keys = [f"attention.{name}" for name in names]
    if any(assistant.arch_int(key) != model.arch_int(key) for key in keys):
        return False
    num_layers = layer_count(model) - head_count(model)
    windows = model.arch_ints("attention.sliding_window_pattern", num_layers) or []
    kv_heads = model.arch_ints("attention.head_count_kv", num_layers) or [0]
    heads = assistant.arch_ints("attention.head_count", layer_count(assistant))
    return [bool(window) for window in windows[-2:]] == [True, False] and all(
        count > 0 and head % count == 0 for head in heads or [1] for count in kv_heads[-2:]
    )


def layer_count(header: GgufHeader) -> int:
    return header.arch_int("block_count") or 0


def _bytes_of_token(header: GgufHeader, first: int, end: int) -> float:
    used = header.arch_int("expert_used_count") or 1
    share = used / max(used, header.arch_int("expert_count") or 1)
    tensors = model_tensors(header)
    sizes = {tensor.name: tensor.num_bytes for tensor in tensors}
    total = float(sizes.get("output.weight", sizes.get("token_embd.weight", 0)))
    for tensor in tensors:
        found = _LAYER.fullmatch(tensor.name)
        if found is not None and first <= int(found[1]) < end and "embed_tokens" not in found[2]:
            total += tensor.num_bytes * (share if "_exps" in found[2] else 1.0)
    return total


def relative_cost(head: PredictionHead, model: GgufHeader) -> float:
    num_layers = layer_count(model) - head_count(model)
    end = layer_count(head.header)
    first = 0 if head.kind is HeadKind.SHARED else end - head.num_heads
    own = _bytes_of_token(head.header, first, end if head.kind is HeadKind.SHARED else first + 1)
    return own / max(1.0, _bytes_of_token(model, 0, num_layers))
