"""Ids, keys, limits, unknown routes, bugs."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest

from openai_cpu_server.dispatch.dispatcher import Dispatcher
from tests.api.asgi import exchange
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, api, client
from tests.api.talking import chat, error_of

pytestmark = pytest.mark.anyio


async def test_unknown_routes_and_methods(http: httpx.AsyncClient) -> None:
    nowhere = await http.get("/v1/nowhere")
    assert nowhere.status_code == 404
    assert error_of(nowhere)["message"] == "Not Found: GET /v1/nowhere"
    wrong = await http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert error_of(wrong)["code"] == "method_not_allowed"
    assert (await http.get("/v1/models/")).status_code == 404


@pytest.mark.parametrize("given", ["abc-1.2:3/4", "x" * 128])
async def test_a_sane_request_id_is_kept(http: httpx.AsyncClient, given: str) -> None:
    for path in ("/health", "/nowhere"):
        assert (await http.get(path, headers={"x-request-id": given})).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "é"])
async def test_an_insane_request_id_is_replaced(http: httpx.AsyncClient, given: str) -> None:
    response = await http.get("/health", headers={"x-request-id": given.encode()})
    assert response.headers["x-request-id"].startswith("req_")


async def test_a_key_opens_everything_but_health(engine: Dispatcher) -> None:
    locked = msgspec.structs.replace(OPTIONS, api_key="schlüssel")
    async with client(api(engine, locked)) as http:
        for headers in ({}, {"authorization": b"Bearer no"}, {"authorization": "schlüssel".encode()}):
            for path in ("/v1/models", "/nowhere"):
                refused = await http.get(path, headers=headers)
                assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
                assert "x-request-id" in refused.headers
        opened = await http.get("/v1/models", headers={"authorization": "Bearer schlüssel".encode()})
        assert opened.status_code == 200
        assert (await http.get("/health")).status_code == (await http.get("/ready")).status_code == 200


async def test_a_large_body_is_refused_by_its_length_and_by_counting(engine: Dispatcher) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, max_body_bytes=100))
    async with client(app) as http:
        response = await chat(http, user="x" * 100)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
    async with exchange(app, "/v1/chat/completions") as one:
        one.send_body(b"x" * 60, b"x" * 60, b"")
        assert json.loads(await one.chunk() or b"")["error"]["code"] == "request_too_large"
    assert one.status == 413


class BrokenTokenizer(FakeTokenizer):
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if text == "a":
            raise RuntimeError("secret of ours")
        return super().encode(text, add_special=add_special, parse_special=parse_special)


async def test_a_bug_is_logged_not_told(engine: Dispatcher, caplog: pytest.LogCaptureFixture) -> None:
    async with client(api(engine, tokenizer=BrokenTokenizer())) as http:
        response = await http.post("/tokenize", json={"content": "a"}, headers={"x-request-id": "r1"})
    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "r1" in response.text
    assert "secret of ours" in caplog.text
