"""All bodies together: what is being read may hold so much memory, and no more."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from openai_cpu_server.api.application import create_api
from openai_cpu_server.errors import BodiesFull
from openai_cpu_server.http.body import FREE_BYTES, BodyBudget, BodyQuota
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, api, client, num_live, served
from tests.api.sockets import opened
from tests.api.talking import MESSAGES, chat, error_of
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

BUDGET = 200_000
LARGE = b" " * (FREE_BYTES + 150_000)


def test_the_first_bytes_of_a_body_are_free() -> None:
    budget = BodyBudget(10)
    held = [BodyQuota(budget, 10**9) for _ in range(100)]
    for one in held:
        one.has_grown(FREE_BYTES)
    held[0].has_grown(FREE_BYTES + 6)
    with pytest.raises(BodiesFull):
        held[1].has_grown(FREE_BYTES + 5)
    held[1].has_grown(FREE_BYTES + 4)
    held[0].release()
    held[0].release()
    held[1].has_grown(FREE_BYTES + 10)
    for one in held:
        one.release()
    assert budget.used_bytes == 0
    BodyQuota(BodyBudget(10), FREE_BYTES + 10).has_grown(10**9)  # what goes to disk is not counted


COMPRESSED = {
    "gzip": gzip.compress,
    "x-gzip": lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:]),
    "deflate": zlib.compress,
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", COMPRESSED)
async def test_compressed_bodies_are_read(http: httpx.AsyncClient, encoding: str) -> None:
    body = json.dumps({"content": "a" * 300_000}).encode()
    sent, headers = COMPRESSED[encoding](body), {"content-encoding": encoding.upper()}
    for content in (sent, _in_pieces(sent, 100)):
        answer = await http.post("/tokenize", content=content, headers=headers)
        assert answer.json()["count"] == 300_000
    small = COMPRESSED[encoding](b'{"content": "a"}')
    assert (await http.post("/tokenize", content=small, headers=headers)).json()["tokens"] == [99]


ZIPPED = gzip.compress(b'{"content": "a"}', mtime=0)


async def _in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize(
    ("sent", "encoding", "status", "code"),
    [
        (b"{}", "br", 415, "unsupported_encoding"),
        (b"{}", "gzip, gzip", 415, "unsupported_encoding"),
        (b"{}", "zstd", 415, "unsupported_encoding"),
        (b'{"content": "a"}', "gzip", 400, "invalid_encoding"),
        (ZIPPED, ["gzip", "gzip"], 415, "unsupported_encoding"),
        (ZIPPED[:-9], "gzip", 400, "invalid_encoding"),
        (ZIPPED + b"more", "gzip", 400, "invalid_encoding"),
        (gzip.compress(b" ", mtime=0) * 300 + ZIPPED, "gzip", 400, "invalid_encoding"),
        (gzip.compress(b" " * (64 << 20), mtime=0), "gzip", 413, "request_too_large"),
        (b"", "gzip", 400, "invalid_json"),
    ],
)
async def test_other_encodings_and_lies_are_refused(
    http: httpx.AsyncClient, sent: bytes, encoding: str | list[str], status: int, code: str | None
) -> None:
    headers = [("content-encoding", each) for each in ([encoding] if isinstance(encoding, str) else encoding)]
    refused = await http.post("/tokenize", content=sent, headers=headers)
    assert refused.status_code == status
    assert error_of(refused)["code"] == code
    assert status != 415 or refused.headers["accept-encoding"] == "gzip, deflate"


async def test_beyond_it_large_bodies_get_503_and_small_ones_are_served(engine: FakeEngine) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, max_bodies_bytes=BUDGET))
    async with client(app) as http, exchange(app, "/v1/completions") as slow:
        slow.begin_body(LARGE)
        await eventually(lambda: slow.has_read_all)
        refused = await http.post("/tokenize", content=LARGE)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "too_many_bodies")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert (await chat(http)).status_code == 200
        slow.disconnect()
    async with client(app) as http:
        for _ in range(3):
            assert (await http.post("/tokenize", content=LARGE)).status_code == 400


async def test_a_call_that_generates_holds_its_body_no_longer(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    app = api(engine, msgspec.structs.replace(OPTIONS, max_bodies_bytes=BUDGET))
    ask = {"prompt": "a"}
    async with client(app) as http:
        for stream in (True, False):
            async with exchange(app, "/v1/completions") as one:
                one.send_body(LARGE + json.dumps({**ask, "stream": stream}).encode())
                await eventually(lambda: num_live(engine) == 1)
                assert (await http.post("/tokenize", content=LARGE)).status_code == 400
                one.send_body(b"")  # whoever waits for the client to leave is told whatever comes
                await eventually(lambda: one.has_read_all)
                assert (await http.post("/tokenize", content=LARGE)).status_code == 400
                one.disconnect()
            await eventually(lambda: num_live(engine) == 0)


class SlowTokenizer(FakeTokenizer):
    """It goes on when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.may_go_on.wait(DEADLINE_S)
        return super().encode(text, add_special=add_special, parse_special=parse_special)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_message_is_counted_until_it_is_understood(engine: FakeEngine, path: str) -> None:
    """Of a WebSocket: while it waits for that, another is refused; while it generates, another is served."""
    engine.goes_on.clear()
    tokenizer = SlowTokenizer()
    options = msgspec.structs.replace(OPTIONS, max_bodies_bytes=BUDGET)
    app = create_api(served(engine, tokenizer=tokenizer), options).app
    of_chat, of_response = {"messages": MESSAGES}, {"type": "response.create", "input": "a"}
    asked = of_chat if path.endswith("completions") else of_response
    large = json.dumps({**asked, "user": LARGE.decode()})
    async with client(app) as http, opened(app, path=path) as socket, opened(app, path=path) as other:
        socket.send(large)
        await eventually(lambda: socket.to_app.empty())
        other.send(large)
        heard = [await other.next()]
        while "status" not in heard[-1]:
            heard.append(await other.next())
        assert (heard[-1]["status"], heard[-1]["error"]["code"]) == (503, "too_many_bodies")
        assert (await http.post("/tokenize", content=LARGE)).status_code == 503
        tokenizer.may_go_on.set()
        await eventually(lambda: num_live(engine) == 1)
        await checkpoint()
        assert (await http.post("/tokenize", content=LARGE)).status_code == 400
    await eventually(lambda: num_live(engine) == 0)
    async with client(app) as http:
        assert (await http.post("/tokenize", content=LARGE)).status_code == 400


async def test_a_message_that_is_refused_is_not_counted(engine: FakeEngine) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, max_bodies_bytes=BUDGET))
    async with opened(app) as socket:
        for wrong in ("{", '{"request_id": 1}', '{"cancel": "x"}', '{"messages": 1}'):
            for _ in range(3):
                socket.send(LARGE.decode() + wrong)
                assert (await socket.next())["status"] in (400, 404)
