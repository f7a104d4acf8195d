"""`/v1/messages` over HTTP, beside what `exchanges/messages.txt` has."""

from __future__ import annotations

import httpx
import pytest

from tests.api.captures import captured
from tests.api.serving import api, client, new_engine, running
from tests.api.talking import MESSAGES

pytestmark = pytest.mark.anyio


async def test_a_prompt_of_claude_code_is_found_again_whatever_its_billing_line() -> None:
    usages = []
    async with running(new_engine(cache_bytes=100_000)) as engine, client(api(engine)) as http:
        for number in ("fa690", "0aaa9"):
            lines = (f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cch={number};", "Help. " * 50)
            system = [{"type": "text", "text": line} for line in lines]
            body = {"model": "fake", "messages": MESSAGES, "max_tokens": 8, "system": system}
            usages.append((await http.post("/v1/messages", json=body)).json()["usage"])
    first, second = usages
    assert first["cache_read_input_tokens"] == 0
    assert second["input_tokens"] == 1
    assert second["cache_read_input_tokens"] == first["input_tokens"] - 1


@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_a_request_of_claude_code(http: httpx.AsyncClient, query: str) -> None:
    """The first of a conversation."""
    body = captured("claude_code")
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
    }
    body |= {"model": "fake", "messages": body["messages"][:1]}
    answer = await http.post(f"/v1/messages{query}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    ignored = answer.headers["x-ignored-parameters"].split(",")
    assert {"context_management", "tools[1] (web_search_20250305)"} <= set(ignored)
