"""SmolLM2 with rows of 768 values in place of 576, because K-quants store 256 values together, and
llama.cpp stores other rows in other types. Zeros are added, and three heads of zeros. Norms divide by the
root of a mean, in which the zeros count; their weights and their epsilon make up for it, so the
predictions are the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_FROM, _TO = 576, 768
_SHARE = _FROM / _TO
_SIZES = {"embedding_length": _TO, "attention.head_count": 12, "attention.head_count_kv": 4}
_HEADS = {_FROM: _TO, 192: 256}
"""Rows of queries, keys and values, and columns of what is made of them: 64 for each head."""
_EPSILON = "attention.layer_norm_rms_epsilon"


def widened(source: Path, target: Path) -> Path:
    """Write the source's weights as f16. Raises ValueError if the source is another model."""
    reader = gguf.GGUFReader(source)
    if reader.fields["llama.embedding_length"].contents() != _FROM:
        raise ValueError(f"{source} has not rows of {_FROM} values")
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, _fact(name, field.contents()), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, _wide(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _fact(name: str, value: Any) -> Any:
    kind = name.removeprefix("llama.")
    return _SHARE * value if kind == _EPSILON else _SIZES.get(kind, value)


def _wide(values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    added = [(0, _HEADS.get(size, size) - size) for size in values.shape]
    if values.ndim == 1:
        return math.sqrt(_SHARE) * np.pad(values, added)
    return np.pad(values, added).astype(np.float16)
