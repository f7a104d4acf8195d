"""Body and route of `/v1/completions`, and conversion of the body to a `GenerationParams`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Union

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.types import ASGIApp

from openai_cpu_server.api.completions.render import CompletionRenderer, TextCompletion
from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.params import GenerationParams, LimitParam, PromptsParam
from openai_cpu_server.api.generation.route import ApiAdapter, GenerationRoute
from openai_cpu_server.api.generation.sampling import ignored_samplers
from openai_cpu_server.api.generation.to_params import details_param, generation_params, prediction_limit
from openai_cpu_server.api.state import AppState
from openai_cpu_server.errors import wrong
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.http.routes import ApiRouter, model_route
from openai_cpu_server.json_size import MOST_TOKENS


class CompletionBody(shared.GenerationBody, shared.PredictionBody):
    most_numbers: ClassVar[int] = MOST_TOKENS

    prompt: shared.CompletionPrompt
    suffix: str | None = None
    max_tokens: shared.ScoringLimit = None
    truncate_prompt_tokens: shared.LastTokens | None = None
    """vLLM's number of last tokens to keep, or -1 for as many as fit."""
    best_of: shared.PositiveCount | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


def completion_params(body: CompletionBody) -> GenerationParams:
    if body.echo and body.truncate_prompt_tokens is not None:
        message = "'echo' and 'truncate_prompt_tokens' cannot be combined: all of the prompt is echoed."
        raise wrong(message, "truncate_prompt_tokens")
    prompt = PromptsParam(_as_list(body.prompt), suffix=body.suffix, echo=bool(body.echo))
    limit = body.max_tokens
    params = generation_params(body, prompt, id_prefix="cmpl-")
    return msgspec.structs.replace(
        params,
        ignored=Ignored(ignored_samplers(body.samplers)),
        best_of=body.best_of,
        details=details_param(body),
        last_tokens=body.truncate_prompt_tokens,
        logprobs=body.logprobs,
        score_prompt=bool(body.echo) and body.logprobs is not None,
        score_end=body.logprobs is not None,
        max_tokens=prediction_limit(body) if limit is None else LimitParam(limit, "max_tokens"),
    )


def _as_list(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Union[str, Sequence[int]]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [item for item in prompt if not isinstance(item, int)]


COMPLETIONS = ApiAdapter(CompletionBody, completion_params, CompletionRenderer())


class CompletionRoutes:
    def __init__(self, state: AppState) -> None:
        self.route = GenerationRoute(COMPLETIONS, state.generation)

    @model_route(
        "/v1/completions",
        tag="Generation",
        body=CompletionBody,
        answer=TextCompletion,
        batched=lambda at: at.route.answer,
    )
    async def create(self, request: Request) -> ASGIApp:
        """Continue a text, whole or as server-sent events."""
        return await self.route.create(request)


ROUTER = ApiRouter[AppState](CompletionRoutes)
