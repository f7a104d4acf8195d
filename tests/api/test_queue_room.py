"""A full queue: refused by priority, with the scheduler's own estimate of when there is room."""

from __future__ import annotations

import pytest

from tests.api.asgi import exchange
from tests.api.serving import api, client, eventually, new_engine, running
from tests.api.talking import MESSAGES, chat, error_of

pytestmark = pytest.mark.anyio

LONG = {"messages": MESSAGES, "ignore_eos": True}


async def test_a_full_queue_says_when_there_is_room() -> None:
    async with (
        running(new_engine("step_s=0.05", max_seqs=1, max_queue=1)) as engine,
        client(api(engine)) as http,
        exchange(api(engine), "/v1/chat/completions", LONG) as first,
    ):
        await eventually(lambda: engine.status().running["interactive"] == 1)
        async with exchange(api(engine), "/v1/chat/completions", LONG) as second:
            # The first guess is of a tiny model, and learning may correct it so far and no further.
            await eventually(lambda: (engine.requests()[-1].first_token_ms or 0) > 2500)
            before_ms = engine.requests()[-1].first_token_ms
            refused = await chat(http)
            assert before_ms is not None
            assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
            wait_ms = int(refused.headers["retry-after-ms"])
            assert wait_ms == pytest.approx(before_ms, rel=0.2)
            assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
            second.disconnect()
        first.disconnect()


async def test_each_priority_has_a_queue_of_its_own() -> None:
    async with (
        running(new_engine("step_s=0.05", max_seqs=1, max_queue=1)) as engine,
        client(api(engine)) as http,
        exchange(api(engine), "/v1/chat/completions", LONG) as first,
    ):
        await eventually(lambda: engine.status().running["interactive"] == 1)
        async with exchange(api(engine), "/v1/chat/completions", {**LONG, "priority": "batch"}) as second:
            await eventually(lambda: engine.status().waiting["batch"] == 1)
            assert (await chat(http, priority="batch")).status_code == 429
            async with exchange(api(engine), "/v1/chat/completions", LONG) as third:
                await eventually(lambda: engine.status().waiting["interactive"] == 1)
                assert (await chat(http)).status_code == 429
                third.disconnect()
            second.disconnect()
        first.disconnect()


async def test_what_no_queue_can_ever_hold_is_a_wrong_request() -> None:
    async with running(new_engine(max_queue=2)) as engine, client(api(engine)) as http:
        refused = await chat(http, n=3)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "n")
