from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from openai_cpu_server.api.generation.answer_lookup import AnswerLookup
from openai_cpu_server.api.generation.generation import GenerationService
from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.contract.mcp import McpServers
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.pull import PullStep
from openai_cpu_server.errors import ModelNotFound, PullNotAllowed, unknown_parameter
from openai_cpu_server.http.body import BodyBudget, off_loop, streamed_body
from openai_cpu_server.http.context import RequestHistory, context_of
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Body, Ignored, parse
from openai_cpu_server.http.sockets import SocketState
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ChosenModel, ModelRegistry, Preset, ensure_served
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.telemetry import Telemetry

T = TypeVar("T")
B = TypeVar("B", bound=Body)
S = TypeVar("S", bound=msgspec.Struct)


def response_of(schema: type[S], record: object, **others: Any) -> S:
    """Copy the record's fields with the same names, enums by their value."""
    names = [name for name in schema.__struct_fields__ if name not in others and hasattr(record, name)]
    fields = ((name, getattr(record, name)) for name in names)
    return schema(**{name: x.value if isinstance(x, Enum) else x for name, x in fields}, **others)


class ListPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    object: str = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_ends(listed: Sequence[Any]) -> dict[str, Any]:
    return {"first_id": listed[0].id if listed else None, "last_id": listed[-1].id if listed else None}


async def chosen_model(models: ModelRegistry, request: Request, name: str | None) -> ChosenModel:
    """Read a model that nothing has used."""
    allowed = context_of(request.scope).identity.allowed_models
    await ensure_served(models, name, allowed)
    return models.choose(name, allowed)


async def read_body(
    schema: type[B], request: Request, read: Callable[[Request], Awaitable[bytes]] = streamed_body
) -> tuple[B, Ignored, int]:
    data, lenient = await read(request), context_of(request.scope).lenient
    body, ignored = await off_loop(len(data), partial(parse, schema, data, lenient=lenient))
    return body, ignored, len(data)


def check_query_names(request: Request, *names: str) -> None:
    """Raise InvalidRequest for other query parameters."""
    for name in request.query_params:
        if name not in names:
            raise unknown_parameter(name)


FindAdapter = Callable[[AdapterSource], Adapter]
"""Find and read a client's file, in any thread. Raises AdapterNotAllowed, AdapterFailed."""


class ModelKeeping(Protocol):
    """A call without need has no effect."""

    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        """Replace it if its file has changed or `replace` is set. Raises ModelTooLarge, ModelNotLoaded,
        EngineUnavailable."""
        ...

    async def unload(self, model: ServedModel) -> None:
        """Return when its process has ended. Raises ModelInUse."""
        ...


class ModelStore(Protocol):
    """Changes persist for the next start."""

    def pull(self, name: str) -> AsyncIterator[PullStep]:
        """Yield the progress until the model is served. Requests for one model share a pull, which ends
        without listeners. Raises PullFailed, ModelNotLoaded."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a model. Raises ModelNotFound, ModelInUse, InvalidRequest."""
        ...

    async def derive(self, name: str, preset: Preset) -> None:
        """Let the name mean the preset's model. Raises ModelNotFound, InvalidRequest."""
        ...


def store_for(store: ModelStore | None, name: str, request: Request) -> ModelStore:
    """Return the store. Raises PullNotAllowed, and ModelNotFound for a name that the key may not use."""
    if store is None:
        raise PullNotAllowed
    allowed = context_of(request.scope).identity.allowed_models
    if allowed is not None and name not in allowed:
        raise ModelNotFound(name)
    return store


async def pull_to_end(store: ModelStore, name: str) -> None:
    async for _ in store.pull(name):
        pass


class AppState(NamedTuple):
    models: ModelRegistry
    options: ApiOptions
    keys: KeyRing
    limits: RateLimits
    bodies: BodyBudget
    history: RequestHistory
    telemetry: Telemetry
    jobs: Jobs | None
    """Batch API and stored responses, or None."""
    answer_lookup: AnswerLookup | None
    find_adapter: FindAdapter
    keeping: ModelKeeping
    store: ModelStore | None
    """Fixed set of models if None."""
    generation: GenerationService
    mcp: McpServers | None
    """Callable MCP servers. If None, no URL may name one either."""
    at_end: list[Callable[[], Awaitable[None]]]
    """Actions to await after the engines' end. Rooms add to them when they are built."""

    @property
    def sockets(self) -> SocketState:
        return SocketState(self.keys, self.limits, self.bodies, self.history, self.options)
