"""Bodies with the fields that well-known programs add, as their sources have them."""

from __future__ import annotations

import httpx
import pytest

from tests.api.captures import captured

pytestmark = pytest.mark.anyio

BODIES = captured("chat_programs")


@pytest.mark.parametrize("program", BODIES)
async def test_what_it_sends_is_answered(http: httpx.AsyncClient, program: str) -> None:
    answer = await http.post(
        "/v1/chat/completions", json={"model": "fake", "max_tokens": 4, **BODIES[program]}
    )
    assert answer.status_code == 200, answer.text
    assert "choices" in answer.text
