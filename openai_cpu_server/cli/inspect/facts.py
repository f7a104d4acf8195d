"""Facts from a model file's header and chat template."""

from __future__ import annotations

from collections import Counter

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.encoders import ProjectorFacts, why_deadly
from openai_cpu_server.llama.gguf.header import GgufHeader, file_type_name, model_files, total_bytes
from openai_cpu_server.llama.gguf.tensors import Tensor
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import ReasoningField, echo_of, reasoning_format_for
from openai_cpu_server.prompt.template import TemplateShape
from openai_cpu_server.prompt.tool_formats import format_for

_TOKENIZERS = {"llama": "SentencePiece", "gpt2": "BPE", "bert": "WordPiece", "t5": "Unigram", "rwkv": "RWKV"}
_SPECIAL = (
    "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask",
    "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle",
)  # fmt: skip
"""Keys `tokenizer.ggml.*_token_id`, with GGUF's spelling."""
_STATE_KEYS = ("ssm.state_size", "wkv.head_size", "shortconv.l_cache", "kda.head_dim")
_EXPERTS = "_exps."


class TypeShare(msgspec.Struct, frozen=True):
    type: str
    bits: float
    tensors: int
    weights: int
    bytes: int


class WeightFacts(msgspec.Struct, frozen=True):
    parameters: int
    active_parameters: int
    """Parameters of a mixture of experts that one token uses."""
    bits_per_weight: float
    file_type: str | None
    types: list[TypeShare]
    """Largest share first."""


class ModelShape(msgspec.Struct, frozen=True):
    """Sizes, or None where the file has none."""

    layers: int | None
    width: int | None
    heads: int | None
    kv_heads: int | None
    experts: int | None
    experts_used: int | None
    context_trained: int | None
    rope_base: float | None
    rope_dimensions: int | None
    rope_scaling: str | None
    rope_scaling_factor: float | None
    rope_original_context: int | None
    window: int | None
    """Tokens that some or all layers see, or None for all."""
    has_state: bool
    """Some or all layers keep a state per sequence instead of KV cells."""


class SpecialToken(msgspec.Struct, frozen=True):
    role: str
    id: int
    text: str | None


class TokenizerFacts(msgspec.Struct, frozen=True):
    kind: str
    pre: str | None
    size: int
    special: list[SpecialToken]
    adds_bos: bool | None
    """Absent for the kind's default."""
    adds_eos: bool | None


class SightFacts(msgspec.Struct, frozen=True):
    """Projector for pictures. Fields are None where its file has no value."""

    path: str
    file_bytes: int
    kind: str | None
    """Preprocessing and encoder, in llama.cpp's words."""
    image_size: int | None
    """Longer side of the encoder's input, in pixels."""
    patch_size: int | None
    layers: int | None


class HearingFacts(msgspec.Struct, frozen=True):
    """Projector for sound. Fields are None where its file has no value."""

    path: str
    file_bytes: int
    kind: str | None
    sample_rate: int
    bands: int | None
    layers: int | None
    why_not: str | None


class FileFacts(msgspec.Struct, frozen=True):
    path: str
    files: int
    file_bytes: int
    content: str
    """`model`, or another `general.type` of GGUF files."""
    architecture: str
    name: str | None
    description: str | None
    license: str | None
    generates_text: bool
    shape: ModelShape
    weights: WeightFacts
    tokenizer: TokenizerFacts | None


def read_facts(header: GgufHeader, tensors: list[Tensor]) -> FileFacts:
    files, content = model_files(header), header.get_str("general.type") or "model"
    is_causal = header.get_bool(header.for_architecture("attention.causal"))
    return FileFacts(
        path=str(header.path),
        files=len(files),
        file_bytes=total_bytes(files),
        content=content,
        architecture=header.architecture,
        name=header.get_str("general.name"),
        description=header.get_str("general.description"),
        license=header.get_str("general.license"),
        generates_text=content == "model" and bool(header.architecture) and is_causal is not False,
        shape=_shape(header),
        weights=_weights(header, tensors),
        tokenizer=_tokenizer(header),
    )


def read_encoders(header: GgufHeader) -> tuple[SightFacts | None, HearingFacts | None]:
    facts, path, file_bytes = ProjectorFacts.of(header), str(header.path), total_bytes([header.path])
    sight, hearing = None, None
    if (seeing := facts.seeing) is not None:
        sight = SightFacts(path, file_bytes, seeing.kind, seeing.image_size, seeing.patch_size, seeing.layers)
    if (sound := facts.hearing) is not None:
        hearing = HearingFacts(
            path=path,
            file_bytes=file_bytes,
            kind=sound.kind,
            sample_rate=facts.sound_rate,
            bands=sound.num_bands,
            layers=sound.layers,
            why_not=why_deadly(header),
        )
    return sight, hearing


def _weights(header: GgufHeader, tensors: list[Tensor]) -> WeightFacts:
    parameters = sum(tensor.num_values for tensor in tensors)
    experts = header.get_int(header.for_architecture("expert_count")) or 1
    used_experts = header.get_int(header.for_architecture("expert_used_count")) or experts
    of_experts = sum(tensor.num_values for tensor in tensors if _EXPERTS in tensor.name)
    number = header.get_int("general.file_type")
    counts = Counter(tensor.type for tensor in tensors)
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[tensor.type.name] += tensor.num_values
    shares = [
        TypeShare(kind.name, kind.bits, count, weights[kind.name], kind.num_bytes(weights[kind.name]))
        for kind, count in counts.items()
    ]
    return WeightFacts(
        parameters=parameters,
        active_parameters=parameters - of_experts + of_experts * used_experts // experts,
        bits_per_weight=8 * sum(tensor.num_bytes for tensor in tensors) / max(1, parameters),
        file_type=None if number is None else file_type_name(number),
        types=sorted(shares, key=lambda share: -share.bytes),
    )


def _shape(header: GgufHeader) -> ModelShape:
    key = header.for_architecture
    return ModelShape(
        layers=header.get_int(key("block_count")),
        width=header.get_int(key("embedding_length")),
        heads=_largest(header, "attention.head_count"),
        kv_heads=_largest(header, "attention.head_count_kv"),
        experts=header.get_int(key("expert_count")) or None,
        experts_used=header.get_int(key("expert_used_count")) or None,
        context_trained=header.get_int(key("context_length")) or None,
        rope_base=header.get_float(key("rope.freq_base")),
        rope_dimensions=header.get_int(key("rope.dimension_count")),
        rope_scaling=header.get_str(key("rope.scaling.type")),
        rope_scaling_factor=header.get_float(key("rope.scaling.factor")),
        rope_original_context=header.get_int(key("rope.scaling.original_context_length")),
        window=header.get_int(key("attention.sliding_window")) or None,
        has_state=any(header.get_int(key(name)) for name in _STATE_KEYS),
    )


def _largest(header: GgufHeader, name: str) -> int | None:
    layers = header.get_int(header.for_architecture("block_count")) or 1
    values = header.get_ints(header.for_architecture(name), layers)
    return max(values) if values else None


def _tokenizer(header: GgufHeader) -> TokenizerFacts | None:
    size, kind = header.array_length("tokenizer.ggml.tokens"), header.get_str("tokenizer.ggml.model")
    if size is None or kind is None:
        return None
    found = {role: header.get_int(f"tokenizer.ggml.{role}_token_id") for role in _SPECIAL}
    ids = {role: number for role, number in found.items() if number is not None and number < size}
    texts = header.get_strings("tokenizer.ggml.tokens", ids.values())
    return TokenizerFacts(
        kind=_TOKENIZERS.get(kind, kind),
        pre=header.get_str("tokenizer.ggml.pre"),
        size=size,
        special=[SpecialToken(role, number, texts.get(number)) for role, number in ids.items()],
        adds_bos=header.get_bool("tokenizer.ggml.add_bos_token"),
        adds_eos=header.get_bool("tokenizer.ggml.add_eos_token"),
    )


_KEY = "tokenizer.chat_template"


class TemplateFacts(msgspec.Struct, frozen=True):
    source: str
    named: list[str]
    """Further templates, such as `tool_use`."""
    tool_format: str | None
    """Absent if the template cannot be used."""
    reasoning_format: str | None
    """Absent if the template shows no thoughts."""
    reasoning_field: str | None
    """Field with earlier thoughts."""
    shape: TemplateShape | None
    problem: str | None


def read_template(header: GgufHeader) -> TemplateFacts | None:
    source = template_source(header)
    if source is None:
        return None
    named = list(header.get_strings("tokenizer.chat_templates").values())
    try:
        template = ChatTemplate(source, bos_text="", eos_text="")
    except StartupError as error:
        return TemplateFacts(source, named, None, None, None, None, problem=str(error))
    thoughts = reasoning_format_for(template)
    field = echo_of(template) if thoughts else ReasoningField.NOWHERE
    return TemplateFacts(
        source=source,
        named=named,
        tool_format=format_for(template).name,
        reasoning_format=thoughts.name if thoughts else None,
        reasoning_field=None if field is ReasoningField.NOWHERE else field.value,
        shape=template.shape,
        problem=None,
    )


def template_source(header: GgufHeader, name: str = "") -> str | None:
    """`name`: "" for the template of chats."""
    return header.get_str(f"{_KEY}.{name}" if name else _KEY)
