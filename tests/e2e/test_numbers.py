"""Numbers of clients at their bounds and beyond, in all families, on a real engine: nobody dies of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.api.test_numbers import FLOATS, INTEGERS, NO_NUMBERS
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.anyio]

AT_ONCE = 16
SAID = [{"role": "user", "content": "hi"}]
FAMILIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "store": False},
    "/v1/messages": {"messages": SAID, "max_tokens": 3},
    "/v1/generate": {"prompt": "hi"},
    "/v1/generate/batch": {"prompts": ["hi", "ho"]},
}
SAMPLING = {name: values for name, values in FLOATS.items() if name != "timeout"}
SAMPLING |= {name: INTEGERS[name] for name in ("top_k", "repeat_last_n")}
COMBINED = [
    {"repeat_penalty": penalty, "temperature": warmth, **narrowing, "logit_bias": bias}
    for penalty, warmth, narrowing, bias in itertools.product(
        ("0.01", "100"),
        ("0", "1e-5", "2"),
        ({}, {"top_k": "1"}, {"min_p": "1"}, {"top_p": "5e-324"}, {"typical_p": "5e-324"}),
        ("{}", '{"7": 100, "8": -100}'),
    )
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", str(tiny_model_path()), "--max-queue", "1000") as server:
        yield server


def body(path: str, fields: dict[str, str]) -> bytes:
    """The values are JSON, also such as no JSON is."""
    limit = {"max_output_tokens": 3} if path == "/v1/responses" else {"max_tokens": 3}
    given = json.dumps({**limit, **FAMILIES[path]})[:-1]
    more = "".join(f', "{name}": {value}' for name, value in fields.items())
    return f"{given}{more}}}".encode()


def singly() -> Iterator[dict[str, str]]:
    for name, (good, bad) in SAMPLING.items():
        for value in (*good, *bad, *NO_NUMBERS):
            yield {name: value}
            if name not in ("temperature", "repeat_penalty"):
                yield {"repeat_penalty": "0.01", name: value}
    for seed in ("-1", str(2**31), str(2**64), "9" * 4000):
        yield {"seed": seed}


async def post(http: httpx.AsyncClient, path: str, fields: dict[str, str]) -> int:
    content = body(path, fields)
    answer = await http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400), (path, content[:500], answer.text)
    assert b"generation_failed" not in answer.content, (path, content[:500], answer.text)
    return answer.status_code


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.slow)])
async def test_no_number_kills_the_engine(server: ServerProcess, every: int) -> None:
    """Ordinarily each family takes each 19th case, another one than the others do."""
    all_cases = [*singly(), *COMBINED]
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as http:
        for first, path in enumerate(FAMILIES):
            cases = all_cases[first % every :: every]
            statuses: Counter[int] = Counter()
            for start in range(0, len(cases), AT_ONCE):
                some = cases[start : start + AT_ONCE]
                statuses.update(await asyncio.gather(*(post(http, path, fields) for fields in some)))
            assert statuses[200] >= 10 // every, path
    assert server.status()["restarts"] == 0


async def test_nor_does_one_that_comes_by_a_websocket(server: ServerProcess) -> None:
    url = server.url.replace("http", "ws") + "/v1/chat/completions"
    async with connect(url) as socket:
        for fields in singly():
            await socket.send(body("/v1/chat/completions", fields).decode())
            while not {"done", "error"} & (message := json.loads(await socket.recv())).keys():
                pass
            assert message.get("status", 200) in (200, 400), (fields, message)
    assert server.status()["restarts"] == 0


def test_the_request_that_ended_the_server_is_refused(server: ServerProcess) -> None:
    for _ in range(10):
        answer = httpx.post(
            server.url + "/v1/chat/completions", json={"messages": SAID, "repeat_penalty": 1e-300}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "repeat_penalty"
    assert httpx.get(server.url + "/ready").status_code == 200
