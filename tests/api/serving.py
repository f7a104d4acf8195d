"""The real application on a real engine process; only the backend and the tokenizer are fakes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.types import ASGIApp

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.files.rows import RowRunner
from openai_cpu_server.contract.engine import Engine, EngineState
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.subscribers import NO_OBSERVER, EngineObserver
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.telemetry import Telemetry
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.asgi import Exchange, exchange
from tests.api.fake_tokenizer import FakeTokenizer
from tests.reading import model_read_here
from tests.waiting import eventually

OPTIONS = ApiOptions()
TEMPLATE = ChatTemplate(FakeTokenizer.chat_template, bos_text="<s>", eos_text="</s>")


def new_engine(
    *flags: str,
    max_queue: int = 1000,
    max_seqs: int = 16,
    cache_bytes: int = 0,
    observer: EngineObserver = NO_OBSERVER,
) -> EngineClient:
    """An engine process on the fake backend, whose KV cells take one byte per token."""
    command = [sys.executable, "-m", "tests.fake_engine", *flags]
    options = EngineOptions(model_path="", max_seqs=max_seqs, kv_tokens=4096, cache_bytes=cache_bytes)
    return EngineClient(Supervisor(command, options, observer=observer), max_queue=max_queue)


@asynccontextmanager
async def running(engine: EngineClient) -> AsyncIterator[EngineClient]:
    task = asyncio.create_task(engine.run())
    try:
        await eventually(lambda: engine.state is EngineState.READY)
        yield engine
    finally:
        await engine.close()
        await task


def served(engine: Engine, *, template: ChatTemplate | None = TEMPLATE, **more: Any) -> ModelRegistry:
    """A registry of one model with two names."""
    model = model_read_here(
        names=("fake", "team/fake"),
        engine=engine,
        template=template,
        tool_format=TOOL_FORMATS["demo"],
        **more,
    )
    return ModelRegistry([model])


def named(engine: Engine, name: str) -> ServedModel:
    """The served model by another name."""
    model = served(engine).default
    model.names = (name,)
    return model


def embedding_model(engine: Engine, *names: str, tokenizer: FakeTokenizer | None = None) -> ServedModel:
    """A model that embeds or scores, by the kind in the engine's info."""
    info = engine.info
    assert info is not None
    return model_read_here(
        names=names,
        engine=engine,
        tokenizer=tokenizer or FakeTokenizer(adds_end=True),
        template=None,
        tool_format=TOOL_FORMATS["generic"],
        kind=info.kind,
    )


def api(engine: Engine, options: ApiOptions = OPTIONS, telemetry: Telemetry | None = None) -> Starlette:
    return create_api(served(engine), options, telemetry=telemetry).app


def rows(engine: Engine) -> RowRunner:
    return create_api(served(engine), OPTIONS).run_row


def client(app: Starlette, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=headers)


LONG = {"prompt": "a", "ignore_eos": True}


@asynccontextmanager
async def busy(*flags: str, max_queue: int = 1000) -> AsyncIterator[EngineClient]:
    """An engine with one slot, which a long request occupies until it is ended."""
    async with (
        running(new_engine(*(flags or ("step_s=0.02",)), max_seqs=1, max_queue=max_queue)) as engine,
        exchange(api(engine), "/v1/completions", LONG) as first,
    ):
        await eventually(lambda: engine.status().running["interactive"] == 1)
        yield engine
        first.disconnect()


@asynccontextmanager
async def waiting(engine: EngineClient, **fields: object) -> AsyncIterator[Exchange]:
    """A long request that waits in the queue."""
    async with exchange(api(engine), "/v1/completions", {**LONG, **fields}) as request:
        label = str(fields.get("priority", "interactive"))
        await eventually(lambda: engine.status().waiting[label] == 1)
        yield request
        request.disconnect()


def num_live(engine: Engine) -> int:
    return len(engine.requests())


@asynccontextmanager
async def started(
    app: ASGIApp, engine: Engine, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncIterator[Exchange]:
    """A request that the engine runs or queues. Its client disconnects at exit."""
    async with exchange(app, path, body, headers) as request:
        await eventually(lambda: num_live(engine) > 0)
        yield request
        request.disconnect()


def locked_api(
    engine: Engine,
    keys: KeyRing,
    *,
    options: ApiOptions = OPTIONS,
    limits: RateLimits | None = None,
    jobs: Jobs | None = None,
    models: ModelRegistry | None = None,
) -> Starlette:
    """Serve with keys of a file. `models`: None serves the engine alone."""
    return create_api(models or served(engine), options, keys=keys, limits=limits, jobs=jobs).app
