"""Browsers: nothing is allowed unless an origin is named."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from openai_cpu_server.dispatch.dispatcher import Dispatcher
from tests.api.serving import OPTIONS, api, client
from tests.api.talking import error_of

pytestmark = pytest.mark.anyio

PAGE = "https://page.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


async def test_off_by_default(http: httpx.AsyncClient) -> None:
    assert (await http.options("/v1/chat/completions", headers=PREFLIGHT)).status_code == 405
    answer = await http.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("allowed", "said"), [((PAGE, "http://b"), PAGE), (("*",), "*")])
async def test_a_preflight_needs_no_key(engine: Dispatcher, allowed: tuple[str, ...], said: str) -> None:
    options = msgspec.structs.replace(OPTIONS, api_key="k", cors_origins=allowed)
    async with client(api(engine, options)) as http:
        answer = await http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == said
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        refused = await http.get("/v1/models", headers={"origin": PAGE})
        assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
        assert refused.headers["access-control-allow-origin"] == said  # the page may read why
        exposed = refused.headers["access-control-expose-headers"]
        for name in ("x-request-id", "x-ratelimit-remaining-tokens", "x-ratelimit-limit-requests"):
            assert name in exposed


async def test_another_origin_is_not_let_in(engine: Dispatcher) -> None:
    options = msgspec.structs.replace(OPTIONS, cors_origins=("https://other.example",))
    async with client(api(engine, options)) as http:
        assert (await http.options("/v1/models", headers=PREFLIGHT)).status_code == 400
        answer = await http.get("/v1/models", headers={"origin": PAGE})
        assert "access-control-allow-origin" not in answer.headers


async def test_options_without_an_origin_needs_a_key(engine: Dispatcher) -> None:
    options = msgspec.structs.replace(OPTIONS, api_key="k", cors_origins=(PAGE,))
    async with client(api(engine, options)) as http:
        assert (await http.options("/v1/models")).status_code == 401


async def test_a_page_cannot_post_what_browsers_send_unasked(engine: Dispatcher) -> None:
    body, kind = b'{"prompt": "x", "max_tokens": 1}', {"content-type": "text/plain"}
    for allowed, origin, status in (
        ((), PAGE, 403),
        (("https://other.example",), PAGE, 403),
        ((), "null", 403),
        ((PAGE,), PAGE, 200),
        (("*",), PAGE, 200),
        ((), "http://server", 200),
    ):
        options = msgspec.structs.replace(OPTIONS, cors_origins=allowed)
        async with client(api(engine, options)) as http:
            headers = {**kind, "origin": origin, "host": "server"}
            answer = await http.post("/v1/completions", content=body, headers=headers)
            assert answer.status_code == status
            if status == 403:
                assert error_of(answer)["code"] == "origin_not_allowed"
