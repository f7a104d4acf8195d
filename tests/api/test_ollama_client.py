"""Ollama's own client for Python against the application, in one process."""

from __future__ import annotations

from typing import Any

import httpx
import ollama
import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.serving import api
from tests.api.test_ollama import CALL, FIXED, HI

pytestmark = pytest.mark.anyio


def sdk(engine: FakeEngine | None = None) -> Any:
    transport = httpx.ASGITransport(api(engine or FakeEngine()))
    return ollama.AsyncClient(host="http://test", transport=transport)


async def test_the_client_reads_answers_lists_and_errors() -> None:
    client = sdk()
    whole = await client.chat("fake", HI, options=FIXED)
    parts = [part async for part in await client.chat("fake", HI, options=FIXED, stream=True)]
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (parts[-1].done, parts[-1].done_reason, parts[-1].eval_count) == (True, "length", 8)
    assert whole.total_duration > 0
    assert (await client.generate("fake", "hi", options=FIXED)).response
    assert (await client.generate("fake")).done_reason == "load"
    assert [model.model for model in (await client.list()).models] == ["fake", "team/fake"]
    assert [model.name for model in (await client.ps()).models] == ["fake"]
    assert "completion" in (await client.show("fake")).capabilities
    with pytest.raises(ollama.ResponseError, match="nobody") as raised:
        await client.chat("nobody", HI)
    assert raised.value.status_code == 404


async def test_a_python_function_is_a_tool() -> None:
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: where
        """
        return city

    answer = await sdk(FakeEngine(text=CALL)).chat("fake", HI, tools=[weather], options={"num_predict": 200})
    (call,) = answer.message.tool_calls
    assert weather(**call.function.arguments) == "Rome"
    result = {"role": "tool", "tool_name": "weather", "content": "warm"}
    again = await sdk().chat("fake", [*HI, answer.message, result], options={"num_predict": 4})
    assert again.message.content
