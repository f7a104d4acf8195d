"""What steps of a model must read and multiply, by the header of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.roofline import Work
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell


@dataclass(frozen=True)
class ModelWork:
    """A dense model of the llama family: the work of its steps follows from the file's header."""

    body_bytes: int
    body_weights: int
    output_bytes: int
    output_weights: int
    cell_bytes: int
    products_per_pair: int
    """Multiply-adds of attention for a token and a cell that it attends to."""

    @classmethod
    def of(cls, model: Path, kv_type: str) -> ModelWork | None:
        """None if the file holds experts: which of these a step reads depends on the text."""
        header = GgufHeader(model)
        matrices = {each.name: each for each in model_tensors(header) if len(each.shape) > 1}
        embedding = matrices.pop("token_embd.weight")
        output = matrices.pop("output.weight", embedding)
        if any(len(each.shape) > 2 for each in matrices.values()):
            return None
        return cls(
            body_bytes=sum(each.num_bytes for each in matrices.values()),
            body_weights=sum(each.num_values for each in matrices.values()),
            output_bytes=output.num_bytes,
            output_weights=output.num_values,
            cell_bytes=bytes_per_cell(header, KVType.named(kv_type)),
            products_per_pair=_products_per_pair(header),
        )

    def step(self, sizes: Mapping[int, int], held: Mapping[int, int]) -> Work:
        """A step that adds `sizes[slot]` tokens to slots that hold so many, and samples one in each."""
        tokens = sum(sizes.values())
        cells = sum(held.get(slot, 0) + size for slot, size in sizes.items())
        pairs = sum(size * held.get(slot, 0) + size * (size + 1) // 2 for slot, size in sizes.items())
        return Work(
            read_bytes=self.body_bytes + self.output_bytes + cells * self.cell_bytes,
            int8_products=tokens * self.body_weights + len(sizes) * self.output_weights,
            float_products=pairs * self.products_per_pair,
        )


def _products_per_pair(header: GgufHeader) -> int:
    key = header.for_architecture
    layers = header.get_int(key("block_count")) or 0
    heads = header.get_ints(key("attention.head_count"), layers) or [0] * layers
    default = (header.get_int(key("embedding_length")) or 0) // max(1, *heads)
    width = header.get_int(key("attention.key_length")) or default
    return sum(heads) * (width + (header.get_int(key("attention.value_length")) or default))
