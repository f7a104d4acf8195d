"""Refused bodies and their errors, recorded in `refused/`: each error names the client's own field.

A file begins with a path and a body. The fields of each further line replace those of the body; `$x50` and
`$(x)50` stand for 50 times x. `pytest --inline-snapshot=fix tests/api/test_refusals.py` records the errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from inline_snapshot import external_file

from openai_cpu_server.api.application import create_api
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.fake_engine import FakeEngine
from tests.api.serving import client, embedding_model, served
from tests.api.talking import error_by_path
from tests.api.test_adapters import adapter, find
from tests.api.test_exchanges import REPEATED
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER

FOLDER = Path(__file__).parent / "refused"
NEVER_STREAM = {
    *("adapters", "batches", "classify", "control", "detokenize"),
    *("embeddings", "generate_batch", "rerank", "tokenize"),
}


def repeated(match: re.Match[str]) -> str:
    return (match[1] or match[2]) * int(match[3])


@pytest.fixture
async def http(jobs: Jobs) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a server with an adapter, an embedder, a reranker and a database, which the bodies name."""
    engine = FakeEngine(text="Hello you")
    await engine.load_adapter(adapter("french"))
    embedder = embedding_model(FakeEngine(FAKE_EMBEDDER), "embedder")
    cross = embedding_model(FakeEngine(FAKE_RERANKER), "cross")
    models = ModelRegistry([served(engine).default, embedder, cross])
    options = ApiOptions(output_token_cap=50, max_sequences=4)
    async with client(create_api(models, options, jobs=jobs, find_adapter=find).app) as http_client:
        yield http_client


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
async def test_an_error_names_the_clients_field_before_a_stream(http: httpx.AsyncClient, name: str) -> None:
    first, *lines = (FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    path, _, base = first.partition(" ")
    record = f"{first}\n"
    for line in lines:
        if line.startswith("{"):
            body = {**json.loads(base), **json.loads(REPEATED.sub(repeated, line))}
            answers = [await http.post(path, json=body)]
            if name not in NEVER_STREAM:
                answers.append(await http.post(path, json={"stream": True, **body}))
            record += f"{line}\n"
            errors = (f"{each.status_code} {json.dumps(error_by_path(each))}\n" for each in answers)
            record += "".join(dict.fromkeys(errors))
    assert record == external_file(f"refused/{name}.txt")
