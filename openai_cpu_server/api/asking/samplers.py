"""llama-server's `samplers`: those that are named are on, in the one order that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Union

import msgspec
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.errors import wrong

CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The samplers in the one order in which they are applied, which is llama-server's own."""
_GONE = ("infill", "tfs_z", "adaptive_p")
"""Names that clients send and that have no sampler here: they are ignored and named."""
_BY_LETTER = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
_SPELLINGS = {
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "top-n-sigma": "top_n_sigma",
    "temp": "temperature",
}
_NEUTRAL = Sampling(seed=0)
_OF_SAMPLER: Mapping[str, tuple[str, ...]] = {
    "penalties": ("repeat_penalty", "presence_penalty", "frequency_penalty"),
    "dry": ("dry",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc_probability",),
    "temperature": ("temperature",),
}
"""The fields of a `Sampling` that switch each one on."""


def _known_samplers(value: object) -> tuple[str, ...]:
    """Names, or a text of their letters."""
    names = [_BY_LETTER.get(letter, letter) for letter in value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PydanticCustomError("samplers", "Input should be a list of names, or a string of their letters")
    found: list[str] = [_SPELLINGS.get(str(name), str(name)) for name in names]
    strange = next((name for name in found if name not in (*CHAIN, *_GONE)), None)
    if strange is not None:
        known = {"name": strange[:64], "known": ", ".join(CHAIN)}
        raise PydanticCustomError("samplers", "there is no sampler '{name}', only {known}", known)
    return tuple(found)


Samplers = Annotated[
    tuple[str, ...], PlainValidator(_known_samplers, json_schema_input_type=Union[list[str], str])
]


def left_out(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """What a header names of them: there are no such samplers here."""
    return tuple(f"samplers ({name})" for name in names or () if name not in CHAIN)


def with_samplers(sampling: Sampling, names: tuple[str, ...] | None) -> Sampling:
    """Switches off the samplers that are not named, if any are. Raises InvalidRequest for an order that would
    change something."""
    if names is None:
        return sampling
    active = [name for name in names if name in CHAIN and _is_on(sampling, name)]
    if active != sorted(set(active), key=CHAIN.index):
        order = ", ".join(sorted(set(active), key=CHAIN.index))
        raise wrong(
            f"Invalid value for 'samplers': here they are applied in this order: {order}.", "samplers"
        )
    off = [field for name in CHAIN if name not in names for field in _OF_SAMPLER[name]]
    return msgspec.structs.replace(sampling, **{field: getattr(_NEUTRAL, field) for field in off})


def _is_on(sampling: Sampling, name: str) -> bool:
    return any(getattr(sampling, field) != getattr(_NEUTRAL, field) for field in _OF_SAMPLER[name])
