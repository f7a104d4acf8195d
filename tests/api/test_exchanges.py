"""Requests and their whole answers, recorded in `exchanges/`.

Each section of a file has its own server. It has a title, the server's options as `{...}`, and requests as
`key: METHOD path body` after their headers, `@ name: value`. The engine holds a request after `&` until a
line with `&` alone. A line `!` sets the engine's state and its reason; `! held` holds all requests until the
next state; `!2` means the third engine. `$(x)50` stands for 50 times x, `<resp_1>` for the first id of a
response. Indented lines are answers, in which `~` stands for times.
`pytest --inline-snapshot=fix tests/api/test_exchanges.py` writes them again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from inline_snapshot import external_file
from starlette.applications import Starlette

from openai_cpu_server.answers.cache import AnswerCache
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import StoreBounds
from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.answer_lookup import AnswerLookup, SimilarAnswers
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.models.defaults import ModelDefaults
from openai_cpu_server.models.registry import ModelRegistry, Preset
from tests.api.fake_engine import READY, FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, embedding_model, named, num_live, served
from tests.api.test_adapters import adapter, find
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER
from tests.waiting import DEADLINE_S, eventually

FOLDER = Path(__file__).parent / "exchanges"
REQUEST = re.compile(r"(?:(\w+): )?([A-Z]+) (/\S*) ?(.*)")
REPEATED = re.compile(r"\$(?:\((.+?)\)|(.))(\d+)")
NEW_ID = re.compile(r"\b([a-z]+)[-_][0-9a-zA-Z]{20,}\b")
TIMES = re.compile(
    r'("(?:created|digest|request_id|system_fingerprint|(?:total_)?bytes|age_s|'
    r'\w+_(?:at|ms|per_second|duration))": )(?!null)[^,}[]+'
)
BOUNDS = StoreBounds(60, 1_000_000)
HEADERS = (
    *("x-cache", "x-ignored-parameters", "x-unenforced-schema-keywords", "x-ratelimit-remaining-tokens"),
    *("x-conversation-id", "access-control-allow-origin", "access-control-allow-methods"),
    *("access-control-allow-headers", "access-control-allow-credentials", "access-control-expose-headers"),
)


class SilentTokenizer(FakeTokenizer):
    """A tokenizer that returns no tokens for any text, and adds none."""

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        return [[] for _ in texts]


class AnswerMetrics:
    """Counts the answers that a cache has stored."""

    num_stored = 0

    def answer_stored(self) -> None:
        self.num_stored += 1

    def answers_held(self, entries: int, num_bytes: int) -> None: ...


class Server:
    """An application on engines in this process, and the names of the ids in its answers."""

    def __init__(self, app: Starlette, engines: list[FakeEngine], metrics: AnswerMetrics) -> None:
        self.app, self.engines, self.metrics = app, engines, metrics
        self.headers: dict[str, str] = {}
        """Headers of the next request."""
        self._names: dict[str, str] = {}
        self._num_misses = 0

    def change(self, line: str) -> None:
        number, state, reason = f"{line} ".split(" ", 2)
        engine = self.engines[int(number or 0)]
        if state == "held":
            engine.goes_on.clear()
        else:
            engine.goes_on.set()
            engine.base_status = msgspec.structs.replace(
                READY, state=EngineState(state), reason=reason.strip() or None
            )

    async def begin(self, line: str) -> None:
        for engine in self.engines:
            engine.goes_on.clear()
        self._held_answer = asyncio.create_task(self.answer(line))
        await eventually(lambda: any(map(num_live, self.engines)) or self._held_answer.done())

    async def end(self) -> str:
        for engine in self.engines:
            engine.goes_on.set()
        return await self._held_answer

    async def answer(self, line: str) -> str:
        request = REPEATED.sub(lambda found: (found[1] or found[2]) * int(found[3]), line)
        for new_id, name in self._names.items():
            request = request.replace(name, new_id)
        found = REQUEST.fullmatch(request)
        assert found, line
        key, method, path, body = found.groups()
        headers, self.headers = {**self.headers, **(of(key) if key else {})}, {}
        with anyio.fail_after(DEADLINE_S):
            async with client(self.app) as http:
                answer = await http.request(method, path, content=body.encode(), headers=headers)
        self._num_misses += answer.headers.get("x-cache") == "miss"
        await eventually(lambda: self.metrics.num_stored == self._num_misses)
        return self._record(answer)

    def _record(self, answer: httpx.Response) -> str:
        record = [f"{name}: {answer.headers[name]}" for name in HEADERS if name in answer.headers]
        for line in answer.text.split("\n"):
            start, data = ("data: ", line[6:]) if line.startswith("data: {") else ("", line)
            if data.startswith(("{", "[")):
                data = TIMES.sub(r"\1~", json.dumps(json.loads(data)))
            if data and (data == "event: error" or not data.startswith(("event: ", ":"))):
                record.append(start + NEW_ID.sub(self._named, data))
        text = "\n    ".join(record)
        return f"    {answer.status_code} {text}".rstrip()

    def _named(self, found: re.Match[str]) -> str:
        number = 1 + sum(name.startswith(f"<{found[1]}_") for name in self._names.values())
        return self._names.setdefault(found[0], f"<{found[1]}_{number}>")


@asynccontextmanager
async def serving(folder: Path, special: dict[str, Any]) -> AsyncIterator[Server]:
    """`special`: the engine's text, the defaults of its model, keys with their lines, whether there is a
    database, options, and for an answer cache the least similarity of questions, or 1 for equal ones."""
    engines = [FakeEngine(text=special.pop("says", "Hello you")), FakeEngine()]
    engines += [FakeEngine(FAKE_EMBEDDER), FakeEngine(FAKE_RERANKER)]
    await engines[0].load_adapter(adapter("french"))
    embeds = SilentTokenizer() if special.pop("is_silent", False) else None
    models = [
        served(engines[0], tokenizer=FakeTokenizer(has_fim=True)).default,
        named(engines[1], "fake:7b"),
        embedding_model(engines[2], "embeds", "e", tokenizer=embeds),
        embedding_model(engines[3], "ranks"),
    ]
    holders, has_database = special.pop("keys", {}), special.pop("database", True)
    keys = key_ring(folder, special.pop("shared", None), **holders) if holders else None
    jobs = Jobs(open_database("sqlite://"), JobOptions(model="fake")) if has_database else None
    registry, metrics, answer_lookup = ModelRegistry(models), AnswerMetrics(), None
    if defaults := special.pop("defaults", None):
        models[0].defaults = ModelDefaults(**defaults)
        registry.derive(
            "derived", Preset(base="fake", parameters={"temperature": 0.9, "top_k": 0}, max_tokens=7)
        )
    if least := special.pop("cache", None):
        for model in models:
            model.content_digest = lambda model=model: model.name  # type: ignore[misc]
        answers = AnswerCache(SqliteAnswers.open(None, BOUNDS), BOUNDS, metrics, answer_s=DEADLINE_S)
        answer_lookup = AnswerLookup(
            answers, registry, SimilarAnswers("embeds", least) if least < 1 else None
        )
        special["compares_turns"] = least < 1
    special |= {name: tuple(value) for name, value in special.items() if isinstance(value, list)}
    options = msgspec.structs.replace(OPTIONS, **special)
    api = create_api(registry, options, keys=keys, jobs=jobs, find_adapter=find, answer_lookup=answer_lookup)
    yield Server(api.app, engines, metrics)
    await api.settle()
    if jobs:
        await jobs.close()


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
async def test_answers_are_as_recorded(tmp_path: Path, name: str) -> None:
    sections = []
    for section in (FOLDER / f"{name}.txt").read_text("utf-8").split("\n\n## "):
        title, *lines = [line for line in section.split("\n") if line and not line.startswith("    ")]
        record = [title, *(lines.pop(0) for _ in range(lines[0].startswith("{")))]
        async with serving(tmp_path, json.loads(record[1]) if record[1:] else {}) as server:
            for line in lines:
                record += [line] if record[-1].startswith(("# ", "!", "@ ", "& ")) else ["", line]
                if line.startswith("!"):
                    server.change(line[1:])
                elif line.startswith("@ "):
                    header, _, value = line[2:].partition(":")
                    server.headers[header] = value.strip()
                elif line.startswith("& "):
                    await server.begin(line[2:])
                elif not line.startswith("# "):
                    record.append(await (server.end() if line == "&" else server.answer(line)))
        sections.append("\n".join(record))
    assert "\n\n\n## ".join(sections) + "\n" == external_file(f"exchanges/{name}.txt")
