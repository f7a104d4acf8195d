"""Variants of tiny models in GGUF files: other metadata, tensors, vocabularies and kinds of memory."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from random_model.gguf_file import add_facts

from tests.tiny_model import tiny_model_path


def rewritten(
    source: Path,
    target: Path,
    changes: dict[str, object],
    tensors: dict[str, np.ndarray | None] | None = None,
) -> Path:
    """Copy a model with changed metadata and tensors. A value of None removes its key or tensor."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(changes.get("general.architecture", "llama")))
    copy_metadata(reader, writer, skip=set(changes))
    added = {key: value for key, value in changes.items() if value is not None}
    add_facts(writer, {key: value for key, value in added.items() if key != "general.architecture"})
    copy_tensors(reader, writer, tensors)
    return written(writer, target)


def as_architecture(
    source: Path,
    target: Path,
    architecture: str,
    tensors: dict[str, np.ndarray | None] | None = None,
    **more: object,
) -> Path:
    """Copy a llama model as one of another architecture, with changed tensors and metadata."""
    values = gguf.GGUFReader(source).fields.items()
    facts = {name.replace("llama.", f"{architecture}."): field.contents() for name, field in values}
    own = {name: value for name, value in facts.items() if name.startswith(f"{architecture}.")}
    return rewritten(source, target, {"general.architecture": architecture, **own, **more}, tensors)


def header_only(path: Path, architecture: str, facts: dict[str, object]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    add_facts(writer, facts)
    return written(writer, path)


def padded(source: Path, target: Path, *, num_tokens: int) -> Path:
    """Copy a model with unused tokens at the end of its vocabulary, which it predicts as far likelier."""
    reader = gguf.GGUFReader(source)
    more: dict[str, list[object]] = {
        "tokenizer.ggml.tokens": [f"<padding{n}>" for n in range(num_tokens)],
        "tokenizer.ggml.scores": [-1e6] * num_tokens,
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * num_tokens,
    }
    arrays = {name: reader.fields[name].contents() + values for name, values in more.items()}
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    wider = {
        name: np.concatenate([tensors[name], 20 * tensors[name][-num_tokens:]])
        for name in ("token_embd.weight", "output.weight")
    }
    return rewritten(source, target, {**arrays, "llama.vocab_size": None}, wider)


def with_vocabulary(source: Path, target: Path, **arrays: list[object] | None) -> Path:
    return rewritten(source, target, {f"tokenizer.ggml.{name}": values for name, values in arrays.items()})


def poisoned(source: Path, target: Path, *, token: int) -> Path:
    """Copy a model so that it computes NaN for every sequence with this token."""
    name = "token_embd.weight"
    (data,) = [tensor.data.copy() for tensor in gguf.GGUFReader(source).tensors if tensor.name == name]
    data[token] = np.nan
    return rewritten(source, target, {}, {name: data})


def split(source: Path, target: Path, *, tensors_per_part: int) -> list[Path]:
    """Copy a model in parts, and return `TARGET-00001-of-0000N.gguf` and so on, in order."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama", split_max_tensors=tensors_per_part)
    copy_metadata(reader, writer, skip=set())
    copy_tensors(reader, writer)
    written(writer, target)
    return sorted(target.parent.glob(f"{target.stem}-*-of-*.gguf"))


def gemma3(target: Path, *, window: int) -> Path:
    facts = {"general.architecture": "gemma3", "gemma3.attention.sliding_window": window}
    return rewritten(tiny_model_path(shape="tiny-gemma3"), target, facts)


def audio_projector(path: Path, kind: str, width: int, stack_factor: int, num_positions: int = 1500) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_uint32("clip.audio.embedding_length", width)
    writer.add_uint32("clip.audio.projector.stack_factor", stack_factor)
    writer.add_tensor("a.position_embd.weight", np.zeros((num_positions, 8), np.float32))
    return written(writer, path)


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
    for name, data in changed.items():
        if data is not None:
            writer.add_tensor(name, data)


def written(writer: gguf.GGUFWriter, target: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
