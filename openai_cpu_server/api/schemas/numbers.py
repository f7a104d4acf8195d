"""The numbers of all families' bodies, within the bounds that the engine knows, too."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from openai_cpu_server.contract.bounds import (
    COLDEST,
    COUNT,
    LOGIT_BIAS,
    REPEAT_PENALTY,
    SHARE,
    SMALLEST,
    TEMPERATURE,
    TYPICAL_P,
    USAGE_PENALTY,
)

_LONGEST_S = 1e9
"""Some thirty years: clients that want no limit write such numbers. Clocks and timers take it."""


_TOO_MANY = COUNT.most + 1


def _no_dust(number: float) -> float:
    return 0.0 if abs(number) < SMALLEST else number


def _typical(number: float) -> float:
    return max(number, TYPICAL_P.least)


def _greedy(temperature: float) -> float:
    return 0.0 if temperature < COLDEST else temperature


Temperature = Annotated[float, Field(ge=TEMPERATURE.least, le=TEMPERATURE.most), AfterValidator(_greedy)]
Share = Annotated[float, Field(ge=SHARE.least, le=SHARE.most), AfterValidator(_no_dust)]
TypicalP = Annotated[float, Field(gt=0, le=TYPICAL_P.most), AfterValidator(_typical)]
RepeatPenalty = Annotated[float, Field(ge=REPEAT_PENALTY.least, le=REPEAT_PENALTY.most)]
Penalty = Annotated[float, Field(ge=USAGE_PENALTY.least, le=USAGE_PENALTY.most), AfterValidator(_no_dust)]
Bias = Annotated[float, Field(ge=LOGIT_BIAS.least, le=LOGIT_BIAS.most)]
Seconds = Annotated[float, Field(ge=0.001, le=_LONGEST_S)]

TopK = Annotated[int, Field(ge=-1, lt=_TOO_MANY)]
"""0 and -1: all."""
Count = Annotated[int, Field(ge=COUNT.least, lt=_TOO_MANY)]
"""None at least."""
Several = Annotated[int, Field(ge=1, lt=_TOO_MANY)]
"""One at least."""
Budget = Annotated[int, Field(ge=-1, lt=_TOO_MANY)]
"""Tokens; -1: any number, as llama-server has it."""
TopLogprobs = Annotated[int, Field(ge=0, le=20)]
Seed = int
"""Any: it is folded into 63 bits."""
