"""Errors cut long names, and no answer names a model that its key may not use."""

from __future__ import annotations

import re
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
FOREIGN = "foreign-model"


def body(name: str) -> dict[str, object]:
    """Fields of most routes; a lenient server ignores those that a route does not have."""
    ids = dict.fromkeys(("model", "name", "input_file_id", "source"), name)
    texts = {"prompt": "hi", "input": "hi", "query": "q", "content": "hi", "destination": "b"}
    batch = {"endpoint": "/v1/completions", "completion_window": "24h"}
    return {**ids, **texts, **batch, "messages": MESSAGES, "max_tokens": 2, "stream": False}


async def answers(app: Starlette, name: str, routes: list[str], key: str = "") -> list[httpx.Response]:
    async with client(app, of(key) if key else None) as http:
        return [
            await http.request(
                method, re.sub(r"\{.*?\}", name, path), json=None if method == "GET" else body(name)
            )
            for method, path in (route.split(" ") for route in routes)
            if path != "/v1/events"  # its answer has no end
        ]


async def test_no_error_repeats_a_long_name(jobs: Jobs) -> None:
    app = create_api(served(FakeEngine()), LENIENT, jobs=jobs).app
    failed = [answer for answer in await answers(app, 3000 * "y", [*NEEDED]) if answer.status_code >= 400]
    assert len(failed) > 50
    assert [answer.text for answer in failed if 300 * "y" in answer.text or answer.status_code >= 500] == []


async def test_no_answer_names_a_model_that_the_key_may_not_use(tmp_path: Path, jobs: Jobs) -> None:
    foreign = FakeEngine()
    adapter = Adapter(name="foreign-model-adapter", path="a", digest="d", scale=1.0)
    foreign.adapters_by_name = {adapter.name: AdapterStatus(adapter=adapter, state=AdapterState.READY)}
    models = ModelRegistry([named(foreign, FOREIGN), named(FakeEngine(), "open")])
    keys = key_ring(tmp_path, b='models = ["open"]\nscopes = ["inference", "admin"]')
    app = create_api(models, LENIENT, keys=keys, jobs=jobs).app
    routes = [route for route, scope in NEEDED.items() if scope not in (OPEN, METRICS)]
    for name in ("nothing", "open", "open:nothing"):
        found = [answer for answer in await answers(app, name, routes, "b") if FOREIGN in answer.text]
        assert [(answer.url, answer.text) for answer in found] == []
