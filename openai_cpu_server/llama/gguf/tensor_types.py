"""The types of tensors that this build of ggml knows, with the sizes of their blocks."""

from __future__ import annotations

import ctypes
import functools

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.bindings import libggml, llama_cpp

_PRODUCED = frozenset(
    (
        "f32", "f16", "bf16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "q2_0", "q1_0",
        "q6_K", "q5_K", "q4_K", "q3_K", "q2_K", "tq2_0", "tq1_0", "mxfp4", "nvfp4",
        "iq4_nl", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
    )
)  # fmt: skip
"""The types that ggml_quantize_chunk makes; it ends the process for any other."""


class TensorType(msgspec.Struct, frozen=True):
    number: int
    name: str
    """ggml's name, such as `q4_K`."""
    block_values: int
    block_bytes: int
    is_quantised: bool
    needs_importance: bool
    """Whether this type needs an importance matrix."""

    @property
    def bits(self) -> float:
        """The bits of one value."""
        return 8 * self.block_bytes / self.block_values

    @property
    def can_be_made(self) -> bool:
        return self.name in _PRODUCED

    def num_bytes(self, num_values: int) -> int:
        """The bytes of `num_values` values in whole blocks."""
        return num_values // self.block_values * self.block_bytes


@functools.cache
def tensor_types() -> dict[int, TensorType]:
    """All types in use by their numbers."""
    library = _library()
    # "Not given" is one more than the largest: the only place where the C interface tells the count.
    count = int(llama_cpp.llama_model_quantize_default_params().output_tensor_type)
    return {number: _described(library, number) for number in range(count) if library.ggml_blck_size(number)}


def tensor_type_named(name: str) -> TensorType:
    """Find a type; case does not matter. Raises `StartupError` for types that cannot be made."""
    made = {kind.name.lower(): kind for kind in tensor_types().values() if kind.can_be_made}
    found = made.get(name.lower())
    if found is None:
        raise StartupError(f"there is no tensor type {name!r}; there are {', '.join(made)}")
    return found


def _described(library: ctypes.CDLL, number: int) -> TensorType:
    return TensorType(
        number=number,
        name=library.ggml_type_name(number).decode(),
        block_values=library.ggml_blck_size(number),
        block_bytes=library.ggml_type_size(number),
        is_quantised=library.ggml_is_quantized(number),
        needs_importance=library.ggml_quantize_requires_imatrix(number),
    )


def _library() -> ctypes.CDLL:
    """The ggml library, with the signatures of these functions; llama_cpp declares none of them."""
    library: ctypes.CDLL = libggml
    results = {
        "ggml_type_name": ctypes.c_char_p,
        "ggml_blck_size": ctypes.c_int64,
        "ggml_type_size": ctypes.c_size_t,
        "ggml_is_quantized": ctypes.c_bool,
        "ggml_quantize_requires_imatrix": ctypes.c_bool,
    }
    for name, result in results.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_int], result
    return library
