"""D4: each route that names a model, in each state of that model. It answers, waits, or gives a reason.

A new route with a model fails the first test until its request stands in one of the tables.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import ROWS, create_api
from openai_cpu_server.contract.engine import EngineState, unavailable
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.models.grammars import ModelGrammars
from openai_cpu_server.models.keeper import KeeperEntry, MemoryBudget, MemoryNeed, ModelKeeper
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel, UnreadableModel
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, TEMPLATE, client
from tests.api.sockets import connected
from tests.clock import Clock
from tests.fake_engine import COMMAND
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO, FAKE_RERANKER
from tests.gates import Gate
from tests.reading import model_read_here
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

REASON = "it is no model"
HI = [{"role": "user", "content": "hi"}]
CHAT = {"messages": HI, "max_tokens": 2, "model": "m"}
OLLAMA = {"stream": False, "model": "m", "options": {"num_predict": 2}}
COMPUTED: dict[str, dict[str, object]] = {
    "POST /v1/chat/completions": CHAT,
    "POST /v1/completions": {"model": "m", "max_tokens": 2, "prompt": "a"},
    "POST /v1/responses": {"model": "m", "input": "hi", "max_output_tokens": 2},
    "POST /v1/responses/compact": {"model": "m", "input": "hi"},
    "POST /v1/messages": CHAT,
    "POST /generate": {"model": "m", "max_tokens": 2, "prompt": "a"},
    "POST /v1/generate/batch": {"model": "m", "max_tokens": 2, "prompts": ["a"]},
    "POST /api/chat": {**OLLAMA, "messages": HI},
    "POST /api/generate": {**OLLAMA, "prompt": "hi"},
    "POST /completion": {"model": "m", "prompt": "a", "n_predict": 2},
    "POST /v1/embeddings": {"model": "e", "input": "a"},
    "POST /embedding": {"model": "e", "content": "a"},
    "POST /api/embed": {"model": "e", "input": "a"},
    "POST /api/embeddings": {"model": "e", "prompt": "a"},
    "POST /v1/rerank": {"model": "r", "query": "a", "documents": ["b"]},
    "POST /score": {"model": "r", "text_1": "a", "text_2": "b"},
    "POST /classify": {"model": "r", "input": "a"},
}
STREAMS = {
    f"{name} as a stream": {**COMPUTED[name], "stream": True}
    for name in ("POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages", "POST /completion")
}
LOADS: dict[str, dict[str, object]] = {
    "POST /v1/models/{id}/load": {},
    "POST /api/generate to load": {"model": "m"},
    "POST /api/chat to load": {"model": "m", "stream": False},
}
READ: dict[str, dict[str, object]] = {
    "POST /v1/chat/completions/input_tokens": CHAT,
    "POST /v1/responses/input_tokens": {"model": "m", "input": "hi"},
    "POST /v1/messages/count_tokens": {"messages": HI, "model": "m"},
    "POST /tokenize": {"model": "m", "content": "a"},
    "POST /detokenize": {"model": "m", "tokens": [70]},
    "POST /apply-template": {"messages": HI, "model": "m"},
    "GET /tokenizer_info": {},
}
"""Routes that need a readable model file, but no engine."""
FACTS: dict[str, dict[str, object]] = {"POST /api/show": {"model": "m"}, "GET /props": {}, "GET /slots": {}}
CARDS: dict[str, dict[str, object]] = {"GET /v1/model/info": {}, "GET /v1/models/{id}": {}}
OTHERS = {
    "POST /infill": "this model has no tokens for it: 400 before its state counts",
    "POST /v1/audio/transcriptions": "this model does not hear: the same",
    "POST /v1/audio/translations": "this model does not hear: the same",
    "POST /v1/models/{id}/unload": "it has its own test",
    "POST /v1/models/pull": "the model is not there yet",
    "DELETE /v1/models/{id}": "the set of models is fixed here",
    "POST /api/pull": "the model is not there yet",
    "POST /api/create": "the set of models is fixed here",
    "DELETE /api/delete": "the set of models is fixed here",
    "POST /v1/adapters": "there are none here; tests/engine_client/test_adapters.py has the states",
    "POST /v1/chat/completions/control": "it names a response",
    "GET /v1/usage": "it names a model to filter by",
}
"""Routes with a model that are in no other table, with the reason."""


class Answers(NamedTuple):
    computed: int = 200
    read: int = 200
    facts: int = 200
    loads: int = 200
    waits: bool = False
    """True if generations and loads wait for the gate."""


STATES = {
    "asleep": Answers(waits=True),
    "loading": Answers(waits=True),
    "ready": Answers(),
    "restarting": Answers(waits=True),
    "failed": Answers(computed=503, facts=503, loads=503),
    "unreadable": Answers(computed=503, read=503, facts=503, loads=503),
    "loading at first": Answers(computed=503, facts=503, waits=True),
    "draining": Answers(computed=503, loads=503),
    "stopped": Answers(computed=503, facts=503, loads=503),
    "removed": Answers(404, 404, 404, 404),
}
INFOS = {"m": FAKE_INFO, "e": FAKE_EMBEDDER, "r": FAKE_RERANKER}
FLAGS = {"m": (), "e": ("embeds=yes",), "r": ("embeds=scores",)}


class Observer:
    def model_loaded(self, model: str, seconds: float) -> None: ...
    def model_not_loaded(self, model: str) -> None: ...
    def model_unloaded(self, model: str, why: str) -> None: ...


class Models:
    """Models that generate, embed and rerank, in one state. They load when the gate is open."""

    def __init__(self, folder: Path, state: str) -> None:
        self.state = state
        self.gate = Gate(folder / "gate")
        self.keeper = ModelKeeper(MemoryBudget(100), Observer(), clock=Clock())
        self.entries: dict[str, KeeperEntry] = {}
        self.engines: list[EngineClient] = []
        self.registry = ModelRegistry([self._built("other"), *map(self._built, INFOS)])

    def _built(self, name: str) -> ServedModel:
        info, is_first = INFOS.get(name, FAKE_INFO), self.state == "loading at first"
        fails = (f"fail={REASON}",) if self.state in ("failed", "unreadable") else ()
        supervisor = Supervisor(
            (*COMMAND, *FLAGS.get(name, ()), *fails, self.gate.loads),
            EngineOptions(model_path="", max_seqs=32, kv_tokens=4096, calibrate="never"),
            clock=Clock(),
            begins_asleep=not is_first,
            foretold=None if is_first or self.state == "unreadable" else info,
        )
        engine = EngineClient(supervisor, max_queue=1000)
        entry = KeeperEntry(name, engine.residency, MemoryNeed(weights=1, cells=0, buffers=0), None, False)
        engine.on_wanted = lambda: self.keeper.want(entry)
        self.keeper.add(entry)
        self.entries[name] = entry
        if name != "other":
            self.engines.append(engine)
        if self.state == "unreadable" and name != "other":
            engine.residency.fail(REASON)
            unread = UnreadableModel(REASON)
            texts = {"tokenizer": unread, "prompts": unread, "grammars": ModelGrammars(unread)}
            return ServedModel(names=(name,), engine=engine, tool_format=TOOL_FORMATS["demo"], **texts)
        return model_read_here(
            names=(name,),
            engine=engine,
            tokenizer=FakeTokenizer(adds_end=info.kind is not ModelKind.GENERATES),
            template=TEMPLATE if info.kind is ModelKind.GENERATES else None,
            tool_format=TOOL_FORMATS["demo"],
            kind=info.kind,
            may_retry=lambda: self.keeper.may_retry(entry),
        )

    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        """Do the same as `ModelFleet.load` for a file that has not changed."""
        if model.engine.is_ending:
            raise unavailable(model.engine.status())
        await self.keeper.load(self.entries[model.name])
        return model

    async def unload(self, model: ServedModel) -> None:
        await self.keeper.unload(self.entries[model.name])

    @property
    def app(self) -> Starlette:
        return create_api(self.registry, OPTIONS, keeping=self).app

    async def settle(self) -> None:
        """Bring the models into the state."""
        if self.state in ("asleep", "loading", "loading at first"):
            self.gate.close()
        if self.state in ("loading", "ready", "restarting", "failed", "draining"):
            for engine in self.engines:
                engine.residency.wake()
        if self.state == "removed":
            for model in self.registry.current[1:]:
                self.registry.remove(model)
        if self.state in ("ready", "restarting", "failed", "draining"):
            await asyncio.gather(*(engine.residency.settled() for engine in self.engines))
        await asyncio.gather(*map(self._settle, self.engines))

    async def _settle(self, engine: EngineClient) -> None:
        if self.state == "restarting":
            self.gate.close()
            assert engine.engine_pid is not None
            os.kill(engine.engine_pid, signal.SIGKILL)
            await eventually(lambda: engine.state is EngineState.RESTARTING)
        if self.state == "draining":
            await engine.drain(0)
        if self.state == "stopped":
            await engine.close()


@asynccontextmanager
async def running_models(folder: Path, state: str) -> AsyncIterator[Models]:
    models = Models(folder, state)
    tasks = [asyncio.create_task(engine.run()) for engine in models.engines]
    keeping = asyncio.create_task(models.keeper.run())
    try:
        await models.settle()
        yield models
    finally:
        models.gate.open()
        keeping.cancel()
        await asyncio.gather(*(engine.close() for engine in models.engines))
        await asyncio.wait([*tasks, keeping])


async def send(http: httpx.AsyncClient, name: str, body: Mapping[str, object]) -> httpx.Response:
    method, path, *_ = name.replace("{id}", "m").split()
    if method == "POST":
        return await http.post(path, json=body)
    return await http.get(path, params={} if "{id}" in name else {"model": "m"})


def check_refusal(answer: httpx.Response, name: str, status: int) -> None:
    message = f"{name}: {answer.status_code} {answer.text}"
    assert answer.status_code == status, message
    if status == 503:
        assert "retry-after" in answer.headers or answer.headers["x-should-retry"] == "false", message
        assert any(word in answer.text for word in (REASON, "loading", "shutting down", "stopped")), message
    if status == 404:
        assert "does not exist" in answer.text, message


def test_each_route_with_a_model_is_in_a_table() -> None:
    routes = {
        row.name
        for row in {row.handler: row for row in reversed(ROWS)}.values()
        if "model" in (row.body.model_fields if row.body else row.query) or row.path.startswith("/v1/models/")
    }
    assert routes == {*COMPUTED, *READ, *FACTS, *CARDS, *OTHERS, "POST /v1/models/{id}/load"}


QUICK = ("asleep", "failed", "unreadable", "stopped", "removed")
ALL = [pytest.param(state, marks=() if state in QUICK else pytest.mark.slow) for state in STATES]


@pytest.mark.parametrize("state", ALL)
async def test_a_route_answers_waits_or_gives_a_reason(state: str, tmp_path: Path) -> None:
    expected = STATES[state]
    async with running_models(tmp_path, state) as models, client(models.app) as http:
        for name, body in [*READ.items(), *FACTS.items()]:
            check_refusal(
                await send(http, name, body), name, expected.read if name in READ else expected.facts
            )
        for name, body in CARDS.items():
            card = await send(http, name, body)
            check_refusal(card, name, 404 if state == "removed" else 200)
            assert state == "removed" or card.json()["state"] == models.engines[0].state.value
        waiting = {**COMPUTED, **STREAMS, **LOADS}
        tasks = {name: asyncio.create_task(send(http, name, body)) for name, body in waiting.items()}
        if expected.waits:
            num_computed = len(COMPUTED) + len(STREAMS) if expected.computed == 200 else 0
            await eventually(lambda: sum(len(engine.requests()) for engine in models.engines) == num_computed)
            patient = waiting if num_computed else LOADS
            assert [name for name, task in tasks.items() if name in patient and task.done()] == []
            models.gate.open()
        for name, task in tasks.items():
            answer, status = await task, expected.loads if name in LOADS else expected.computed
            if name == "POST /v1/generate/batch" and status != 200:  # it has an error for each prompt
                assert f'"status":{status}' in answer.text, answer.text
            else:
                check_refusal(answer, name, status)
        assert not expected.waits or models.engines[0].state is EngineState.READY


@pytest.mark.parametrize("state", ["failed", "stopped", "removed"])
async def test_sockets_and_rows_of_batches_have_the_same_status(state: str, tmp_path: Path) -> None:
    status = STATES[state].computed
    async with running_models(tmp_path, state) as models:
        api = create_api(models.registry, OPTIONS, keeping=models)
        for path, message in {
            "/v1/chat/completions": {**CHAT, "request_id": "a"},
            "/v1/responses": {"type": "response.create", **COMPUTED["POST /v1/responses"]},
        }.items():
            async with connected(api.app, path=path) as socket:
                await socket.accepted()
                socket.send(message)
                answer = await socket.take(lambda event: "error" in event)
                assert answer["status"] == status, answer
        for name in ("POST /v1/chat/completions", "POST /v1/responses", "POST /v1/embeddings"):
            body = httpx.Request("POST", "http://test", json=COMPUTED[name]).content
            assert (await api.run_row(name.split()[1], body, "")).status == status


@pytest.mark.parametrize(
    "state", ["asleep", "unreadable", "removed", pytest.param("restarting", marks=pytest.mark.slow)]
)
async def test_unloading_ends_a_load_and_ignores_an_unloaded_model(state: str, tmp_path: Path) -> None:
    async with running_models(tmp_path, state) as models, client(models.app) as http:
        answer = await http.post("/v1/models/m/unload")
        assert answer.status_code == (404 if state == "removed" else 200), answer.text
        if state != "removed":
            assert answer.json()["state"] == ("failed" if state == "unreadable" else "asleep")
