"""Ollama's own client for Python, in this process, against the application."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.serving import api

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]


def sdk(engine: FakeEngine | None = None) -> Any:
    ollama = pytest.importorskip("ollama")
    transport = httpx.ASGITransport(api(engine or FakeEngine()))
    return ollama.AsyncClient(host="http://test", transport=transport)


async def test_it_chats_whole_and_in_a_stream() -> None:
    options = {"num_predict": 8, "temperature": 0, "seed": 1}
    whole = await sdk().chat("fake", HI, options=options)
    told = [part async for part in await sdk().chat("fake", HI, options=options, stream=True)]
    assert "".join(part.message.content for part in told) == whole.message.content
    assert (told[-1].done, told[-1].done_reason, told[-1].eval_count) == (True, "length", 8)
    assert whole.total_duration > 0


async def test_it_generates_and_completes() -> None:
    assert (await sdk().generate("fake", "hi", options={"num_predict": 4})).response
    loaded = await sdk().generate("fake")
    assert (loaded.response, loaded.done_reason) == ("", "load")


async def test_a_function_of_pythons_is_a_tool() -> None:
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: where
        """
        return city

    engine = FakeEngine(says='<|tool_call|>{"name":"weather","arguments":{"city":"Rome"}}')
    answer = await sdk(engine).chat("fake", HI, tools=[weather], options={"num_predict": 200})
    (call,) = answer.message.tool_calls
    assert weather(**call.function.arguments) == "Rome"
    result = {"role": "tool", "tool_name": "weather", "content": "warm"}
    again = await sdk().chat("fake", [*HI, answer.message, result], options={"num_predict": 4})
    assert again.message.content


async def test_it_lists_and_shows() -> None:
    assert [model.model for model in (await sdk().list()).models] == ["fake", "team/fake"]
    assert [model.name for model in (await sdk().ps()).models] == ["fake"]
    assert "completion" in (await sdk().show("fake")).capabilities


async def test_its_error_has_the_text_and_the_status() -> None:
    ollama = pytest.importorskip("ollama")
    with pytest.raises(ollama.ResponseError) as raised:
        await sdk().chat("nobody", HI)
    assert raised.value.status_code == 404
    assert "nobody" in raised.value.error
