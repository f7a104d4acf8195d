"""Mixed traffic for long, also with models that come and go: no answer is lost, memory stays flat."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil
import websockets

from chaos_parts.server import Server

Json = dict[str, Any]
_CHAT = "/v1/chat/completions"
_WORDS = ("the", "cat", "a", "tree", "sings", "of", "seven", "stones", "and", "rain")
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}
_BAD = (b"{", b"[]", b'{"messages":[]}', b"[" * 50_000, b'{"messages":[{"role":"user"}],"temperature":1e400}')


class Wrong(Exception): ...


class Client:
    """One of many clients. Visits are drawn from a seed; a method is a kind of visit."""

    def __init__(
        self, http: httpx.AsyncClient, models: dict[str, str], counts: Counter[str], seed: int
    ) -> None:
        """`models`: the kind of each."""
        self._http = http
        self._models = models
        self._model = ""
        self._counts = counts
        self._random = Random(seed)
        streams = (self.stream, self.stream, self.leaves, self.socket)
        self._kinds = (self.whole, *streams, self.structured, self.tools, self.bad, self.batch)

    async def visit(self) -> None:
        self._model = self._random.choice(list(self._models))
        kind = self._random.choice(self._kinds)
        if self._models[self._model] == "embeds":
            kind = self.embed
        try:
            await kind()
            self._counts[kind.__name__] += 1
        except (httpx.HTTPError, websockets.WebSocketException, OSError, Wrong) as error:
            self._counts["errors"] += 1
            self._counts[f"{kind.__name__}: {type(error).__name__} {error}"[:160]] += 1

    async def embed(self) -> None:
        texts = [self._words(), "tea"]
        answer = await self._send("POST", "/v1/embeddings", json={"model": self._model, "input": texts})
        if len(answer["data"]) != len(texts):
            raise Wrong("another number of embeddings")

    async def whole(self) -> None:
        await self._send("POST", _CHAT, json=self._body())

    async def stream(self) -> None:
        async with self._http.stream("POST", _CHAT, json=self._body(stream=True)) as answer:
            self._note(answer.status_code)
            lines = [line async for line in answer.aiter_lines() if line]
        if answer.status_code == 200 and lines[-1] != "data: [DONE]":
            raise Wrong(f"a stream ended with {lines[-1][:80]}")

    async def leaves(self) -> None:
        body = self._body(stream=True, max_tokens=200, ignore_eos=True)
        async with self._http.stream("POST", _CHAT, json=body) as answer:
            self._note(answer.status_code)
            async for _ in answer.aiter_bytes():
                return

    async def structured(self) -> None:
        shape = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": _SCHEMA}}
        answer = await self._send("POST", _CHAT, json=self._body(response_format=shape, max_tokens=60))
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            json.loads(choice["message"]["content"])

    async def tools(self) -> None:
        """Expect 400 from a model without tool calls."""
        body = self._body(tools=[_TOOL], tool_choice="required", max_tokens=60)
        await self._send("POST", _CHAT, statuses=(200, 400), json=body)

    async def bad(self) -> None:
        await self._send("POST", _CHAT, statuses=(400,), content=self._random.choice(_BAD))

    async def socket(self) -> None:
        url = str(self._http.base_url).replace("http", "ws", 1).rstrip("/") + _CHAT
        async with websockets.connect(url) as socket:
            for name in "abc":
                await socket.send(json.dumps(self._body(request_id=name)))
            await socket.send('{"cancel": "b"}')
            left = set("abc")
            while left:
                message = json.loads(await socket.recv())
                if "done" in message or "error" in message:
                    self._note(message.get("status", 0))
                    left.discard(message["request_id"])

    async def batch(self) -> None:
        rows = [{"custom_id": str(i), "method": "POST", "url": _CHAT, "body": self._body()} for i in range(5)]
        files = {"file": ("rows.jsonl", "\n".join(map(json.dumps, rows)).encode())}
        file_id = (await self._send("POST", "/v1/files", data={"purpose": "batch"}, files=files))["id"]
        ask = {"input_file_id": file_id, "endpoint": _CHAT, "completion_window": "24h"}
        batch = await self._send("POST", "/v1/batches", json=ask)
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.5)
            batch = await self._send("GET", f"/v1/batches/{batch['id']}")
        if batch["request_counts"]["completed"] != len(rows):
            raise Wrong(f"a batch ended {batch['status']}: {batch['request_counts']}")
        for name in (file_id, batch["output_file_id"]):
            await self._send("DELETE", f"/v1/files/{name}")

    def _body(self, **fields: object) -> Json:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": self._words()}],
            "max_tokens": self._random.choice((1, 8, 24)),
        }
        return {**body, **fields}

    def _words(self) -> str:
        return " ".join(self._random.choices(_WORDS, k=self._random.choice((3, 10, 40))))

    async def _send(self, method: str, path: str, *, statuses: Sequence[int] = (200,), **sent: Any) -> Json:
        answer = await self._http.request(method, path, **sent)
        self._note(answer.status_code)
        if answer.status_code not in statuses:
            raise Wrong(f"{answer.status_code}: {answer.text[:120]}")
        return dict(answer.json())

    def _note(self, status: int) -> None:
        self._counts["requests"] += 1
        self._counts["5xx"] += status >= 500


_LOOK_S = 0.5
_SETTLE_S = 2.0
_LOADS = re.compile(r"^ocs_model_(\w+)_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Soak:
    """`memory_mib`: limit of several models together."""

    minutes: float
    clients: int
    pause_s: float
    kill_every_s: float | None
    """Interval, or None if nothing is killed and no engine may restart."""
    memory_mib: int | None
    max_growth: float
    seed: int


@dataclass
class SoakFigures:
    visits: Counter[str]
    """Counts by kind and failure; `requests`, `errors` and `5xx` in all."""
    loads: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    restarts: int = 0
    start_mib: float = 0.0
    warm_mib: float = 0.0
    end_mib: float = 0.0
    growth: float = 0.0
    engines_most_mib: float = 0.0
    """Resident; pages of a file that two map count twice."""
    is_good: bool = False


def run_soak(models: Sequence[str], folder: Path, soak: Soak, options: Sequence[str]) -> SoakFigures:
    """Put jobs in a file, because in memory they would count as growth."""
    options = (*options, "--jobs-db", str(folder / "jobs.db"))
    if soak.memory_mib is not None:
        options = (*options, "--memory", str(soak.memory_mib))
    with Server(models, folder / "soak.log", *options) as server:
        return asyncio.run(_Run(server, soak).run())


class _Run:
    def __init__(self, server: Server, soak: Soak) -> None:
        self._server = server
        self._soak = soak
        self._chance = random.Random(soak.seed)
        self._figures = SoakFigures(visits=Counter({"errors": 0, "5xx": 0}))

    async def run(self) -> SoakFigures:
        found, soak = self._figures, self._soak
        limits = httpx.Limits(max_connections=soak.clients + 1)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=300, limits=limits) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            kinds = {model["id"]: model["kind"] for model in listed}
            others = [asyncio.create_task(self._watch_memory()), asyncio.create_task(self._kill_on())]
            found.start_mib = self._tree_mib()
            # After a quarter of the time, the prefix cache and the allocators have reached their size.
            await self._busy(http, kinds, 60 * soak.minutes / 4, soak.seed)
            found.warm_mib = self._tree_mib()
            await self._busy(http, kinds, 60 * soak.minutes * 3 / 4, soak.seed + 1000)
            found.end_mib = self._tree_mib()
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            found.restarts = (await http.get("/health")).json()["restarts"]
            for what, count in _LOADS.findall((await http.get("/metrics")).text):
                found.loads[what] += int(float(count))
        found.kills, found.growth = self._server.kills, found.end_mib / found.warm_mib - 1
        found.is_good = self._is_good()
        return found

    def _is_good(self) -> bool:
        found, soak = self._figures, self._soak
        if found.visits["5xx"] or found.visits["errors"]:
            return False
        if soak.memory_mib is not None:
            return found.engines_most_mib <= soak.memory_mib
        return found.growth <= soak.max_growth and found.restarts <= found.kills

    async def _busy(self, http: httpx.AsyncClient, kinds: dict[str, str], seconds: float, seed: int) -> None:
        end_s = time.monotonic() + seconds

        async def visit_until(seed: int) -> None:
            client = Client(http, kinds, self._figures.visits, seed)
            while time.monotonic() < end_s:
                await client.visit()
                if self._soak.pause_s:
                    await asyncio.sleep(self._chance.expovariate(1 / self._soak.pause_s))

        await asyncio.gather(*(visit_until(seed + number) for number in range(self._soak.clients)))
        await asyncio.sleep(_SETTLE_S)

    async def _watch_memory(self) -> None:
        while True:
            engines = sum(map(_resident, self._server.engines())) / 2**20
            self._figures.engines_most_mib = max(self._figures.engines_most_mib, engines)
            await asyncio.sleep(_LOOK_S)

    async def _kill_on(self) -> None:
        while self._soak.kill_every_s is not None:
            await asyncio.sleep(self._soak.kill_every_s * self._chance.uniform(0.5, 1.5))
            self._server.kill_engine()

    def _tree_mib(self) -> float:
        process = psutil.Process(self._server.pid)
        return sum(map(_resident, [process, *process.children(recursive=True)])) / 2**20


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0
