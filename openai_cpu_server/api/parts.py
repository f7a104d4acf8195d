"""What the routes of one server are made of: models, keys, limits, and what belongs to the whole server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from openai_cpu_server.api.asking.answer_lookup import AnswerLookup
from openai_cpu_server.api.asking.generation import GenerationService
from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.contract.mcp import McpServers
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.pull import PullStep
from openai_cpu_server.http.body import BodyBudget
from openai_cpu_server.http.context import EndedRequests
from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.sockets import SocketParts
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.presets import Preset
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.watch import Watch

T = TypeVar("T")


class ListPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Objects of a page of them."""

    object: str = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_ends(listed: Sequence[Any]) -> dict[str, Any]:
    """The ids that a page of these tells."""
    return {"first_id": listed[0].id if listed else None, "last_id": listed[-1].id if listed else None}


FindAdapter = Callable[[AdapterSource], Adapter]
"""Finds the file that a client names, and reads it. Raises AdapterNotAllowed, AdapterFailed. Any thread."""


class ModelKeeping(Protocol):
    """Loads and unloads. Both do nothing where that is so already."""

    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        """Returns when it is loaded. A file that has changed, or `replace`, is loaded beside it and takes its
        place. Raises ModelTooLarge, ModelNotLoaded, EngineUnavailable."""
        ...

    async def unload(self, model: ServedModel) -> None:
        """Returns when its process has ended. Raises ModelInUse."""
        ...


class ModelStore(Protocol):
    """Changes the set of models; what it changes is kept for the next start."""

    def pull(self, name: str) -> AsyncIterator[PullStep]:
        """Its progress, until it is served; who asks for one that is coming joins. It ends when nobody
        listens any more. Raises PullFailed, ModelNotLoaded."""
        ...

    async def remove(self, name: str) -> None:
        """Raises ModelNotFound, ModelInUse, InvalidRequest for what is not to be removed."""
        ...

    async def derive(self, name: str, preset: Preset) -> None:
        """The name means the preset's model from now on. Raises ModelNotFound, InvalidRequest."""
        ...


class ServerParts(NamedTuple):
    """Rooms of routes take from it what they need."""

    models: ModelRegistry
    options: ApiOptions
    keys: KeyRing
    limits: RateLimits
    bodies: BodyBudget
    endings: EndedRequests
    watch: Watch
    jobs: Jobs | None
    """None: there is no batch API, and no response is stored."""
    recall: AnswerLookup | None
    """None: there is no cache of answers."""
    find_adapter: FindAdapter
    """Finds what `POST /v1/adapters` names."""
    keeping: ModelKeeping
    """What loads and unloads models."""
    store: ModelStore | None
    """None: the set of models stays as it is."""
    generation: GenerationService
    """The way of all calls that generate."""
    mcp: McpServers | None
    """None: there are no MCP servers, and no URL may name one."""
    at_end: list[Callable[[], Awaitable[None]]]
    """What is awaited when the engines have ended; rooms add to it when they are made."""

    @property
    def sockets(self) -> SocketParts:
        return SocketParts(self.keys, self.limits, self.bodies, self.endings, self.options)
