from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, Union

from pydantic import BeforeValidator, Field, JsonValue, PlainValidator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.params import JsonObject, LimitParam, LogitBiasParam
from openai_cpu_server.contract.request import COUNT, LOGIT_BIAS
from openai_cpu_server.http import ignored_params
from openai_cpu_server.json_size import MOST_TOKENS
from openai_cpu_server.models.defaults import SamplingValues

MOST_PROBS = 100
"""Editors and studios show ten."""
MOST_FILES = 256
_CHATS = "it belongs to chats; '/v1/chat/completions' takes them"


class Biases(NamedTuple):
    ids: dict[int, float]
    texts: tuple[LogitBiasParam, ...]


def _biases(value: object) -> Biases:
    """Accept a text for each of its tokens, and `false` to forbid them."""
    if not isinstance(value, (list, Mapping)):
        raise _wrong_bias()
    ids: dict[int, float] = {}
    texts: list[LogitBiasParam] = []
    for pair in value.items() if isinstance(value, Mapping) else value:
        bias = _bias(pair)
        if isinstance(bias.token, int) and bias.amount is not None:
            ids[bias.token] = bias.amount
        else:
            texts.append(bias)
    return Biases(ids, tuple(texts))


def _bias(pair: object) -> LogitBiasParam:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise _wrong_bias()
    token, amount = pair
    is_number = isinstance(amount, (int, float)) and amount is not True and not math.isnan(amount)
    if not (shared.is_token_id(token) or isinstance(token, str)) or not is_number:
        raise _wrong_bias()
    is_id = not isinstance(token, str) or (token.isascii() and token.isdigit() and len(token) <= 10)
    return LogitBiasParam(
        int(token) if is_id else token, None if amount is False else float(LOGIT_BIAS.nearest(amount))
    )


def _wrong_bias() -> PydanticCustomError:
    message = "Input should be an object of token and bias, or a list of [token, bias]"
    return PydanticCustomError("logit_bias", message)


TokenBias = Annotated[
    Biases, PlainValidator(_biases, json_schema_input_type=Union[dict[str, JsonValue], list[list[JsonValue]]])
]
_NonEmptyStops = BeforeValidator(
    lambda value: [each for each in value if each != ""] if isinstance(value, list) else value or None
)
"""llama-server ignores empty stop strings."""
WholeCount = Annotated[int, Field(ge=0, le=COUNT.most), shared.IntegralFloat]
ANY_SEED = 2**32 - 1
"""Placeholder. Reported seeds are below it, so that any client can send them again."""
DEFAULTS: SamplingValues = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama-server's values for fields that neither a request nor the model has."""


class LlamaServerBody(shared.SharedBody, shared.PredictionBody, shared.OpenBody):
    """Fields of both bodies. Unknown ones are ignored, as in llama-server."""

    most_numbers: ClassVar[int] = MOST_TOKENS
    is_open: ClassVar[bool] = True
    ignored: ClassVar[ignored_params.IgnoredParams] = {
        **ignored_params.LLAMA_SERVER_IGNORED,
        "reasoning_format": ignored_params.IgnoredParam(_CHATS),
        "parse_tool_calls": ignored_params.IgnoredParam(_CHATS, (False,)),
        "chat_format": ignored_params.IgnoredParam(_CHATS),
        "stream_options": ignored_params.IgnoredParam("the last chunk has all counts in any case"),
    }
    unsupported: ClassVar[ignored_params.UnsupportedParams] = {
        **ignored_params.LLAMA_SERVER_UNSUPPORTED,
        "reasoning_budget_tokens": ignored_params.UnsupportedParam(_CHATS, (-1,)),
        "echo": ignored_params.UnsupportedParam("the answer always shows the prompt in 'prompt'", (False,)),
    }

    max_tokens: shared.Prediction | None = None
    max_completion_tokens: shared.Prediction | None = None
    n_cmpl: Annotated[shared.PositiveCount, shared.IntegralFloat] | None = None
    n: Annotated[shared.PositiveCount, shared.IntegralFloat] | None = None
    stop: Annotated[shared.Stop | None, _NonEmptyStops] = None
    n_probs: Annotated[int, Field(ge=0, le=MOST_PROBS), shared.IntegralFloat] | None = None
    logit_bias: TokenBias | None = None  # type: ignore[assignment]  # other families take less
    seed: Annotated[shared.Seed, shared.IntegralFloat] | None = None
    top_k: Annotated[shared.TopK, shared.IntegralFloat] | None = None
    repeat_last_n: Annotated[shared.LastN, shared.IntegralFloat] | None = None
    dry_allowed_length: WholeCount | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=COUNT.most), shared.IntegralFloat] | None = None
    grammar: Annotated[str | None, BeforeValidator(lambda value: value or None)] = None
    json_schema: JsonObject | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[shared.NonEmpty], Field(max_length=64, fail_fast=True)] | None = None
    """Fields of the answer, where `a/b` is the field `b` of `a`."""

    @property
    def limit(self) -> LimitParam | None:
        names = ("n_predict", "max_completion_tokens", "max_tokens")
        sent = ((getattr(self, name), name) for name in names)
        return next((LimitParam.ceiling(tokens, name) for tokens, name in sent if tokens is not None), None)


class LlamaCompletionBody(LlamaServerBody):
    prompt: shared.MixedPrompts


class InputExtra(shared.OpenBody):
    filename: str | None = None
    text: str


class LlamaInfillBody(LlamaServerBody):
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[InputExtra], Field(max_length=MOST_FILES, fail_fast=True)] | None = None
    """Most important last, because excess ones are dropped from the front."""
    prompt: str | None = None
    """Continuation of the prefix."""
