from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Any, Union

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server import __version__
from openai_cpu_server.api.generation.route import ApiAdapter, GenerationRoute
from openai_cpu_server.api.llama_server import schema
from openai_cpu_server.api.llama_server.render import LlamaCompletion, LlamaRenderer, settings
from openai_cpu_server.api.llama_server.to_params import llama_completion_params, llama_infill_params
from openai_cpu_server.api.state import AppState, chosen_model
from openai_cpu_server.contract.engine import EngineState, LiveRequest, RequestState, unavailable
from openai_cpu_server.contract.messages import DraftingState
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.errors import EngineUnavailable
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import NumberedErrorObject, json_response, numbered_at
from openai_cpu_server.http.keys import INFERENCE, PROBES, Client, Identity
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, JsonSchema, model_route
from openai_cpu_server.models.defaults import with_values
from openai_cpu_server.models.registry import Preset


class DefaultSettings(msgspec.Struct, frozen=True):
    params: dict[str, Any]
    n_ctx: int


class PropsModalities(msgspec.Struct, frozen=True):
    vision: bool
    audio: bool
    video: bool = False


class Props(msgspec.Struct, frozen=True, kw_only=True):
    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_ftype: str
    model_path: str
    modalities: PropsModalities
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool
    kernels: dict[str, str]
    """Same values as in `/health`."""
    drafts_by: str
    """Source beside prompt lookup: `none`, `model`, or the prediction head's kind."""
    drafting: tuple[DraftingState, ...]
    """Decisions by the number of running sequences."""


class NextToken(msgspec.Struct, frozen=True):
    has_next_token: bool
    n_decoded: int


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """Place for a sequence. Details are shown only for requests of the same client."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool = False
    request: Union[str, UnsetType] = UNSET
    n_prompt_tokens: Union[int, UnsetType] = UNSET
    next_token: Union[list[NextToken], UnsetType] = UNSET


class HealthWord(msgspec.Struct, frozen=True):
    status: str = "ok"


_RENDERER = LlamaRenderer()
_COMPLETION = ApiAdapter(schema.LlamaCompletionBody, llama_completion_params, _RENDERER)
_INFILL = ApiAdapter(schema.LlamaInfillBody, llama_infill_params, _RENDERER)
_STREAM = "With `stream`: `data: ` and a chunk as JSON, an empty line, and so on; the last one has `stop`."
_generation = partial(
    model_route,
    tag="llama-server",
    error=NumberedErrorObject,
    answer=(LlamaCompletion, list[LlamaCompletion]),
    stream_form=_STREAM,
)
_MODEL: Mapping[str, JsonSchema] = {"model": {"type": "string"}}
_fact = partial(
    ApiRoute, "GET", access=INFERENCE, tag="llama-server", errors=(404, 503), error=NumberedErrorObject
)


class LlamaServerRoutes:
    def __init__(self, state: AppState) -> None:
        self._completion = GenerationRoute(_COMPLETION, state.generation)
        self._infill = GenerationRoute(_INFILL, state.generation)
        self._models = state.models

    @_generation("/completion", aliases=("/completions",), body=schema.LlamaCompletionBody)
    async def completion(self, request: Request) -> ASGIApp:
        """Continue one or several texts, in llama-server's format."""
        return await self._completion.create(request)

    @_generation("/infill", body=schema.LlamaInfillBody)
    async def infill(self, request: Request) -> ASGIApp:
        """Fill in the text between two texts, with a model that has tokens for that."""
        return await self._infill.create(request)

    @_fact("/props", query=_MODEL, answer=Props)
    async def props(self, request: Request) -> Response:
        """Describe a model and its default parameters."""
        chosen = await chosen_model(self._models, request, request.query_params.get("model"))
        model, info = chosen.model, chosen.model.loaded()
        preset = chosen.preset or Preset(base=chosen.name)
        values = {**model.defaults.over(schema.DEFAULTS), **preset.parameters}
        most_tokens = preset.max_tokens or model.defaults.max_output_tokens
        defaults = settings(with_values(Sampling(seed=schema.ANY_SEED), values), most_tokens=most_tokens)
        props = Props(
            default_generation_settings=DefaultSettings(defaults, info.context_limit),
            total_slots=info.max_seqs,
            model_alias=chosen.name,
            model_ftype=(model.quantisation or "").upper(),
            model_path=PurePath(info.path).name,
            modalities=PropsModalities(info.sees, info.hears),
            chat_template=model.template_source or "",
            bos_token=model.tokenizer.bos_text,
            eos_token=model.tokenizer.eos_text,
            build_info=f"openai-cpu-server {__version__}",
            is_sleeping=model.engine.state is EngineState.ASLEEP,
            kernels=info.computed_by,
            drafts_by=info.draft_head or ("none" if info.draft_cost is None else "model"),
            drafting=model.engine.status().drafting,
        )
        return json_response(props)

    @_fact("/slots", query={**_MODEL, "fail_on_no_slot": {"type": "string"}}, answer=list[Slot])
    async def slots(self, request: Request) -> Response:
        """List the slots of a model. With `fail_on_no_slot`, answer 503 if none is free."""
        chosen = await chosen_model(self._models, request, request.query_params.get("model"))
        engine, info = chosen.model.engine, chosen.model.loaded()
        running = [one for one in engine.requests() if one.state is RequestState.RUNNING]
        if request.query_params.get("fail_on_no_slot") and len(running) >= info.max_seqs:
            raise EngineUnavailable("No slot is available.")
        identity, speculates = context_of(request.scope).identity, info.draft_cost is not None
        free = [
            Slot(id=number, n_ctx=info.context_limit, speculative=speculates)
            for number in range(max(info.max_seqs, len(running)))
        ]
        taken = [_taken(slot, live, identity) for slot, live in zip(free, running, strict=False)]
        slots = [*taken, *free[len(taken) :]]
        return Response(msgspec.json.encode(slots), media_type="application/json")

    @_fact("/v1/health", access=PROBES, answer=HealthWord)
    async def health(self, request: Request) -> Response:
        """Answer 503 until the server can generate."""
        status = self._models.status()
        if status.state not in (EngineState.READY, EngineState.ASLEEP):
            raise unavailable(status)
        return json_response(HealthWord())


def _taken(slot: Slot, live: LiveRequest, seen_by: Identity) -> Slot:
    taken = msgspec.structs.replace(slot, is_processing=True)
    if not Client.of_label(live.client).is_owned_by(seen_by):
        return taken
    return msgspec.structs.replace(
        taken,
        request=live.id,
        n_prompt_tokens=live.prompt_tokens,
        next_token=[NextToken(has_next_token=True, n_decoded=live.output_tokens)],
    )


ROUTER = ApiRouter[AppState](
    LlamaServerRoutes,
    shape=numbered_at("/completion", "/completions", "/infill", "/props", "/slots", "/v1/health"),
)
