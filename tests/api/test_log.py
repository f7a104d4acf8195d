"""One line for each request, with numbers and without words."""

from __future__ import annotations

import logging

import httpx
import pytest

from openai_cpu_server.engine.client import EngineClient
from tests.api.asgi import exchange
from tests.api.serving import api, eventually
from tests.api.talking import MESSAGES, chat

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [True, False])
async def test_the_log_has_one_line_of_numbers(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with caplog.at_level(logging.INFO, "openai_cpu_server.requests"):
        await chat(
            http,
            stream=stream,
            ignore_eos=True,
            service_tier="flex",
            messages=[{"role": "user", "content": "psst"}],
        )
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith(".requests")]
    fields = dict(field.split("=", 1) for field in line.replace("POST ", "POST_").split())
    assert fields["route"] == "POST_/v1/chat/completions"
    assert (fields["status"], fields["priority"]) == ("200", "batch")
    assert (fields["prompt_tokens"], fields["cached_tokens"], fields["output_tokens"]) == ("7", "0", "8")
    assert float(fields["total_ms"]) >= float(fields["ttft_ms"]) >= float(fields["queue_ms"])
    assert "psst" not in line


async def test_a_client_that_left_is_499_in_the_log(
    slow_engine: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (True, False):
        caplog.clear()
        with caplog.at_level(logging.INFO, "openai_cpu_server.requests"):
            body = {"messages": MESSAGES, "ignore_eos": True, "stream": stream}
            async with exchange(api(slow_engine), "/v1/chat/completions", body) as one:
                await eventually(lambda: slow_engine.status().kv_tokens_used > 0)
                one.disconnect()
        (line,) = [record.getMessage() for record in caplog.records if record.name.endswith(".requests")]
        assert "status=499" in line
        assert "output_tokens=" in line
