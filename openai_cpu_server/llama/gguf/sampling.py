"""Sampling values in a GGUF file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from openai_cpu_server.contract.request import COUNT, REPEAT_PENALTY, SHARE, TEMPERATURE, Bounds, WholeBounds
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader

logger = logging.getLogger(__name__)

_PREFIX = "general.sampling."
_VALUES: Mapping[str, tuple[str, Bounds | WholeBounds]] = {
    "temp": ("temperature", TEMPERATURE),
    "top_p": ("top_p", SHARE),
    "min_p": ("min_p", SHARE),
    "xtc_probability": ("xtc_probability", SHARE),
    "xtc_threshold": ("xtc_threshold", SHARE),
    "penalty_repeat": ("repeat_penalty", REPEAT_PENALTY),
    "top_k": ("top_k", COUNT),
    "penalty_last_n": ("repeat_last_n", COUNT),
}
_ALL = {"top_k": 0, "repeat_last_n": COUNT.most}
"""Meaning of -1."""


def sampling_in_file(header: GgufHeader, *, but: Collection[str] = ()) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    for key, (name, bounds) in _VALUES.items():
        read = header.get_int if isinstance(bounds, WholeBounds) else header.get_float
        if name in but or (number := read(_PREFIX + key)) is None:
            continue
        if isinstance(number, float):
            number = float(f"{number:.6g}")  # float32 has no more digits
        values[name] = number = _ALL.get(name, number) if number == -1 else number
        if not bounds.least <= number <= bounds.most:
            raise StartupError(
                f"{header.path}: {_PREFIX}{key} is {number}, which is not between {bounds.least} and "
                f"{bounds.most}: set '{name}' in the model's table [models.NAME]"
            )
    if header.get_int(f"{_PREFIX}mirostat"):
        logger.warning("%s asks for mirostat, a sampler that is not supported", header.path.name)
    return values
