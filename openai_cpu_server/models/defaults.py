"""Values of sampling fields and of the output limit that requests leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import msgspec

from openai_cpu_server.contract.request import Sampling

SamplingValues = Mapping[str, Union[int, float]]
"""Values by the contract's names. `top_k` is 0 for all tokens."""
CUT_TAIL: SamplingValues = {"min_p": 0.05}
"""Last step: less likely tokens are a small model's noise."""
DEFAULT_OUTPUT_TOKENS = 4096
"""Some 3,000 words, which end within the 600 s of common SDKs at 12 tokens a second."""
DEFAULT_REASONING_TOKENS = 16_384


class ModelDefaults(msgspec.Struct, frozen=True, kw_only=True):
    values: SamplingValues = {}
    """Merged from the operator, the file and the model's makers."""
    is_bare: bool = False
    """True if nothing is cut where no value is known."""
    max_output_tokens: int | None = None
    """Limit, or None for the rest of the context."""

    def over(self, family: SamplingValues | None) -> SamplingValues:
        """`family`: values that an API's clients rely on."""
        if family is None:
            family = {} if self.is_bare else CUT_TAIL
        return {**family, **self.values}


NO_DEFAULTS = ModelDefaults()


def with_values(sampling: Sampling, values: SamplingValues) -> Sampling:
    fields: dict[str, int | float | None] = {**values}
    if fields.get("top_k") == 0:
        fields["top_k"] = None
    return msgspec.structs.replace(sampling, **fields)
