"""Names in answers: long ones are cut, and those of models that a key may not use are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from tests.access_table import METRICS, NEEDED, OPEN
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import client, named, served
from tests.api.talking import MESSAGES

pytestmark = pytest.mark.anyio

LENIENT = ApiOptions(lenient=True)
ENDLESS = "/v1/events"
FOREIGN = "foreign-model"


def body(name: str) -> dict[str, object]:
    """What most routes take; a lenient server passes over the rest."""
    ids = dict.fromkeys(("model", "name", "input_file_id", "source"), name)
    texts = {"prompt": "hi", "input": "hi", "query": "q", "content": "hi", "destination": "b"}
    batch = {"endpoint": "/v1/completions", "completion_window": "24h"}
    return {**ids, **texts, **batch, "messages": MESSAGES, "max_tokens": 2, "stream": False}


async def answers(app: Starlette, name: str, routes: list[str], key: str = "") -> Iterator[httpx.Response]:
    async with client(app, of(key) if key else None) as http:
        return iter(
            [
                await http.request(
                    method, re.sub(r"\{.*?\}", name, path), json=None if method == "GET" else body(name)
                )
                for method, path in (route.split(" ") for route in routes)
                if path != ENDLESS
            ]
        )


async def test_no_error_repeats_a_long_name(jobs: Jobs) -> None:
    app = create_api(served(FakeEngine()), LENIENT, jobs=jobs).app
    failed = [one for one in await answers(app, 3000 * "y", [*NEEDED]) if one.status_code >= 400]
    assert len(failed) > 50
    assert [one.text for one in failed if 300 * "y" in one.text or one.status_code >= 500] == []


async def test_no_answer_names_a_model_that_the_key_may_not_use(tmp_path: Path, jobs: Jobs) -> None:
    foreign = FakeEngine()
    adapter = Adapter(name="foreign-model-adapter", path="a", digest="d", scale=1.0)
    foreign.adapters_by_name = {adapter.name: AdapterStatus(adapter=adapter, state=AdapterState.READY)}
    models = ModelRegistry([named(foreign, FOREIGN), named(FakeEngine(), "open")])
    keys = key_ring(tmp_path, b='models = ["open"]\nscopes = ["inference", "admin"]')
    app = create_api(models, LENIENT, keys=keys, jobs=jobs).app
    routes = [route for route, scope in NEEDED.items() if scope not in (OPEN, METRICS)]
    for name in ("nothing", "open", "open:nothing"):
        assert [
            (one.url, one.text) for one in await answers(app, name, routes, "b") if FOREIGN in one.text
        ] == []
