"""The log of requests: a line for each, with numbers and without texts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest

from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.observe.logs import JsonFormatter
from tests.api.fake_engine import FakeEngine
from tests.api.keys import sha
from tests.api.serving import api, client, locked_api, num_live, rows, started
from tests.api.talking import MESSAGES, chat

pytestmark = pytest.mark.anyio

PSST = [{"role": "user", "content": "psst"}]


@pytest.fixture(autouse=True)
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "openai_cpu_server.requests")
    return caplog


def records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.endswith(".requests")]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in records(caplog)]


async def test_a_client_that_disconnects_is_499_in_the_log(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.goes_on.clear()
    for stream in (True, False):
        caplog.clear()
        body = {"messages": MESSAGES, "stream": stream}
        async with started(api(engine), engine, "/v1/chat/completions", body):
            pass
        (line,) = lines(caplog)
        assert num_live(engine) == 0
        assert "status=499" in line
        assert "output_tokens=" in line


async def test_a_request_has_one_line_with_the_name_of_its_key_and_without_texts(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[keys.ann]\nsha256 = "{sha("hunter2")}"\n')
    headers = {
        "authorization": "Bearer hunter2",
        "traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        "x-request-id": "mine",
    }
    async with client(locked_api(engine, KeyRing(None, path)), headers) as http:
        await chat(http, ignore_eos=True)
        await chat(http, ignore_eos=True, stream=True, service_tier="flex", messages=PSST)
        await chat(http, temperature=9)
    good, stream, bad = (json.loads(JsonFormatter().format(record)) for record in records(caplog))
    assert good.keys() == stream.keys()
    assert (stream["priority"], stream["prompt_tokens"], stream["cached_tokens"]) == ("batch", 7, 0)
    assert (good["id"], good["key"], good["status"], good["priority"]) == ("mine", "ann", 200, "interactive")
    assert (good["output_tokens"], good["finish_reason"], good["trace_id"]) == (8, "length", "ab" * 16)
    assert good["total_ms"] >= good["ttft_ms"] >= good["queue_ms"] >= 0
    assert (bad["status"], bad["error"], bad["key"]) == (400, "InvalidRequest", "ann")
    assert "hunter2" not in caplog.text
    assert "psst" not in caplog.text


@pytest.mark.parametrize("header", ["", "x", "00-" + "0" * 32 + "-" + "cd" * 8 + "-01", "ff-" + "a" * 53])
async def test_a_malformed_trace_is_not_logged(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    await http.get("/v1/models", headers={"traceparent": header})
    assert "status=200" in caplog.text
    assert "trace_id" not in caplog.text


async def test_rows_of_batches_have_their_lines(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    run_row = rows(engine)
    answer = await run_row("/v1/chat/completions", json.dumps({"messages": MESSAGES}).encode(), "")
    await run_row("/v1/chat/completions", b"{}", "")
    good, bad = lines(caplog)
    assert f"id={answer.request_id} route=POST /v1/chat/completions status=200 origin=batch" in good
    assert "priority=batch" in good
    assert "status=400 origin=batch priority=batch error=InvalidRequest" in bad


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_health_checks_and_metrics_are_not_logged(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    await http.get(path)
    assert lines(caplog) == []
