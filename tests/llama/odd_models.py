"""Small GGUF files with what the tiny model has not: other metadata, other kinds of memory."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from random_model.wanted import add_facts

_WIDTH, _LAYERS = 64, 2
_RNG = np.random.default_rng(0)


def rewritten(source: Path, target: Path, changes: dict[str, object]) -> Path:
    """A copy with other values (ints, strings or bools) for some metadata keys."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(changes.get("general.architecture", "llama")))
    copy_metadata(reader, writer, skip=set(changes))
    add_facts(writer, {key: value for key, value in changes.items() if key != "general.architecture"})
    copy_tensors(reader, writer)
    return written(writer, target)


def header_only(path: Path, architecture: str, facts: dict[str, object]) -> Path:
    """A file that says this of itself, and has no tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    add_facts(writer, facts)
    return written(writer, path)


def padded(source: Path, target: Path, *, num_tokens: int) -> Path:
    """The same model with tokens of no meaning behind its own, which it holds to be far likelier."""
    reader = gguf.GGUFReader(source)
    arrays: dict[str, list[object]] = {
        "tokens": [f"<padding{n}>" for n in range(num_tokens)],
        "scores": [-1e6] * num_tokens,
        "token_type": [int(gguf.TokenType.UNUSED)] * num_tokens,
    }
    writer = gguf.GGUFWriter(target, "llama")
    names = {name: f"tokenizer.ggml.{name}" for name in arrays}
    copy_metadata(reader, writer, skip={*names.values(), "llama.vocab_size"})
    for name, more in arrays.items():
        writer.add_array(names[name], reader.fields[names[name]].contents() + more)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    wider = {
        name: np.concatenate([tensors[name], 20 * tensors[name][-num_tokens:]])
        for name in ("token_embd.weight", "output.weight")
    }
    copy_tensors(reader, writer, wider)
    return written(writer, target)


def with_vocabulary(source: Path, target: Path, **arrays: list[object] | None) -> Path:
    """The same model with other arrays of its vocabulary, such as `tokens` or `token_type`; None: without."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    changed = {f"tokenizer.ggml.{name}": values for name, values in arrays.items()}
    copy_metadata(reader, writer, skip=set(changed))
    add_facts(writer, {key: values for key, values in changed.items() if values is not None})
    copy_tensors(reader, writer)
    return written(writer, target)


def with_tensors(source: Path, target: Path, changed: dict[str, np.ndarray | None]) -> Path:
    """The same model with other tensors; None: without."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    copy_metadata(reader, writer, skip=set())
    copy_tensors(reader, writer, changed)
    return written(writer, target)


def poisoned(source: Path, target: Path, *, token: int) -> Path:
    """The same model, which computes NaN for every sequence that has this token."""
    name = "token_embd.weight"
    (data,) = [tensor.data.copy() for tensor in gguf.GGUFReader(source).tensors if tensor.name == name]
    data[token] = np.nan
    return with_tensors(source, target, {name: data})


def split(source: Path, target: Path, *, tensors_per_part: int) -> list[Path]:
    """The same model in parts, `TARGET-00001-of-0000N.gguf` and so on, in order."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama", split_max_tensors=tensors_per_part)
    copy_metadata(reader, writer, skip=set())
    copy_tensors(reader, writer)
    written(writer, target)
    return sorted(target.parent.glob(f"{target.stem}-*-of-*.gguf"))


def gemma3(source: Path, target: Path, *, window: int) -> Path:
    """A model in which most layers see only the last `window` tokens."""
    heads, kv_heads, head, inner = 2, 1, 32, 128
    writer = gguf.GGUFWriter(target, "gemma3")
    copy_tokenizer(source, writer)
    writer.add_context_length(1024)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(window)
    shapes = {
        "attn_norm.weight": (_WIDTH,),
        "attn_q.weight": (heads * head, _WIDTH),
        "attn_k.weight": (kv_heads * head, _WIDTH),
        "attn_v.weight": (kv_heads * head, _WIDTH),
        "attn_output.weight": (_WIDTH, heads * head),
        "attn_q_norm.weight": (head,),
        "attn_k_norm.weight": (head,),
        "post_attention_norm.weight": (_WIDTH,),
        "ffn_norm.weight": (_WIDTH,),
        "ffn_gate.weight": (inner, _WIDTH),
        "ffn_up.weight": (inner, _WIDTH),
        "ffn_down.weight": (_WIDTH, inner),
        "post_ffw_norm.weight": (_WIDTH,),
    }
    _add_tensors(writer, source, shapes)
    return written(writer, target)


def hearing_head(path: Path, kind: str, width: int, stacked: int, places: int = 1500) -> Path:
    """What a projector's file says of itself, and one of its tensors."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_uint32("clip.audio.embedding_length", width)
    writer.add_uint32("clip.audio.projector.stack_factor", stacked)
    writer.add_tensor("a.position_embd.weight", np.zeros((places, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, source: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    vocab_size = len(gguf.GGUFReader(source).fields["tokenizer.ggml.tokens"].data)
    writer.add_tensor("token_embd.weight", _random((vocab_size, _WIDTH)))
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    for layer in range(_LAYERS):
        for name, shape in shapes.items():
            data = np.ones(shape, np.float32) if name.endswith("norm.weight") else _random(shape)
            writer.add_tensor(f"blk.{layer}.{name}", data)


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


def copy_tokenizer(source: Path, writer: gguf.GGUFWriter) -> None:
    reader = gguf.GGUFReader(source)
    others = {name for name in reader.fields if not name.startswith("tokenizer.")}
    copy_metadata(reader, writer, skip=others)


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, skip: set[str]) -> None:
    for name, field in reader.fields.items():
        if name not in skip and name != "general.architecture" and not name.startswith("GGUF."):
            inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)


def copy_tensors(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: dict[str, np.ndarray | None] | None = None
) -> None:
    changed = changed or {}
    for tensor in reader.tensors:
        if tensor.name not in changed:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        elif (data := changed[tensor.name]) is not None:
            writer.add_tensor(tensor.name, data)


def written(writer: gguf.GGUFWriter, target: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
