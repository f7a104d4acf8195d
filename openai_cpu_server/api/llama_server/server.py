"""llama-server's description of itself: `/props`, `/slots` and `/v1/health`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Union

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server import __version__
from openai_cpu_server.api.llama_server.body import ANY_SEED, DEFAULTS
from openai_cpu_server.api.llama_server.render import settings
from openai_cpu_server.contract.engine import EngineState, LiveRequest, RequestState, unavailable
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.errors import EngineUnavailable
from openai_cpu_server.http.clients import Client
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.models.registry import ChosenModel, ModelRegistry, fetch


class DefaultSettings(msgspec.Struct, frozen=True):
    params: dict[str, Any]
    n_ctx: int


class PropsModalities(msgspec.Struct, frozen=True):
    vision: bool
    audio: bool = False
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
    """False, because properties cannot be changed."""
    endpoint_metrics: bool = True
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


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


class LlamaServerFacts:
    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def props(self, request: Request) -> Response:
        chosen = await self._chosen(request)
        return json_response(_props(chosen, chosen.model.loaded()))

    async def slots(self, request: Request) -> Response:
        """Answer 503 without a free slot if `fail_on_no_slot` is set."""
        chosen = await self._chosen(request)
        engine, info = chosen.model.engine, chosen.model.loaded()
        running = [one for one in engine.requests() if one.state is RequestState.RUNNING]
        if request.query_params.get("fail_on_no_slot") and len(running) >= info.max_seqs:
            raise EngineUnavailable("No slot is available.")
        told = list(_slots(running, info, context_of(request.scope).identity))
        return Response(msgspec.json.encode(told), media_type="application/json")

    async def health(self, request: Request) -> Response:
        """Answer 503 until the server can generate. Raises EngineUnavailable."""
        status = self._models.status()
        if status.state not in (EngineState.READY, EngineState.ASLEEP):
            raise unavailable(status)
        return json_response(HealthWord())

    async def _chosen(self, request: Request) -> ChosenModel:
        name, allowed = request.query_params.get("model"), context_of(request.scope).identity.allowed_models
        await fetch(self._models, name, allowed)
        return self._models.choose(name, allowed)


def _props(chosen: ChosenModel, info: ModelInfo) -> Props:
    model = chosen.model
    return Props(
        default_generation_settings=DefaultSettings(
            settings(Sampling(seed=ANY_SEED, **DEFAULTS)), info.context_limit
        ),
        total_slots=info.max_seqs,
        model_alias=chosen.name,
        model_ftype=(model.quantisation or "").upper(),
        model_path=PurePath(info.path).name,
        modalities=PropsModalities(info.sees),
        chat_template=model.template_source or "",
        bos_token=model.tokenizer.bos_text,
        eos_token=model.tokenizer.eos_text,
        build_info=f"openai-cpu-server {__version__}",
        is_sleeping=model.engine.state is EngineState.ASLEEP,
    )


def _slots(running: list[LiveRequest], info: ModelInfo, seen_by: Identity) -> Iterator[Slot]:
    speculates = info.draft_cost is not None
    for number in range(max(info.max_seqs, len(running))):
        slot = Slot(id=number, n_ctx=info.context_limit, speculative=speculates)
        if number < len(running):
            slot = _taken(slot, running[number], seen_by)
        yield slot


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
