"""Checks of the Host and Origin headers, and administrators without keys.

Headers of CORS are in `exchanges/browsers.txt`.
"""

from __future__ import annotations

import itertools
from ipaddress import ip_network
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from openai_cpu_server.http.gate import canonical_origin, host_name
from openai_cpu_server.http.keys import is_loopback
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api
from tests.api.sockets import connected
from tests.api.talking import error_of, messages_error_of

pytestmark = pytest.mark.anyio

PAGE = "https://page.example"
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST"}
OURS = frozenset({"localhost", "llm.example"})


def client(app: Starlette, peer: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(peer, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8000")


@pytest.fixture
def named(engine: FakeEngine) -> Starlette:
    return api(engine, msgspec.structs.replace(OPTIONS, hosts=OURS, cors_origins=(PAGE,)))


# -- the Host header --------------------------------------------------------------------------------------

METHODS = ("GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT")
ORIGINS: tuple[dict[str, str], ...] = ({}, PREFLIGHT, {"origin": "null"})
OWN_NAMES = [
    *("localhost", "localhost:8000", "LOCALHOST:1", "localhost.", "llm.example", "LLM.example.:443"),
    *("127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]:8000", "[::1]", "[fe80::1%25eth0]:8000"),
]
OTHER_NAMES = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:8000", ""),
    *("evil.example@localhost", "localhost@evil.example", "localhost:8000@evil.example", "localhost evil"),
    *("http://localhost", "localhost/", "localhost#", "localhost:80x", "localhost:", "[::1", "::1", "[]"),
    *("sub.llm.example", "xllm.example", "localhost, localhost", "1", "0x7f.1", "null", "*", "."),
]


@pytest.mark.parametrize("host", OWN_NAMES)
async def test_the_server_answers_by_its_names_and_addresses(named: Starlette, host: str) -> None:
    async with client(named) as http:
        assert (await http.get("/health", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", OTHER_NAMES)
async def test_no_path_answers_by_another_name(named: Starlette, host: str) -> None:
    """Preflights and probes are refused too, with any Origin. One of the names is tried with all methods."""
    async with client(named) as http:
        for path in ("/", "/health", "/v1/cache", "/v1/chat/completions", "/nowhere"):
            for method, more in itertools.product(METHODS if host == OTHER_NAMES[0] else ("GET",), ORIGINS):
                answer = await http.request(method, path, headers={"host": host, **more})
                assert answer.status_code == 421, (method, path, host)
        answer = await http.get("/v1/models", headers={"host": host})
        assert error_of(answer)["code"] == "host_not_allowed"
        assert "--allowed-host" in str(error_of(answer)["message"])
        anthropic = await http.post("/v1/messages", headers={"host": host}, json={})
        assert messages_error_of(anthropic)["type"] == "invalid_request_error"


async def test_two_host_headers_are_refused_and_a_websockets_host_is_checked(named: Starlette) -> None:
    headers = [("host", "localhost"), ("host", "localhost")]
    async with client(named) as http:
        assert (await http.send(httpx.Request("GET", "http://x/health", headers=headers))).status_code == 421
    async with connected(named, headers={"host": "localhost:8000"}, is_bare=True) as socket:
        await socket.accepted()
    for host in ("evil.example", ""):
        async with connected(named, headers={"host": host}, is_bare=True) as socket:
            status, error = await socket.refused()
            assert (status, error["code"]) == (421, "host_not_allowed")


@pytest.mark.parametrize("hosts", [None, frozenset({"*"})])
async def test_the_check_of_hosts_can_be_off(engine: FakeEngine, hosts: frozenset[str] | None) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, hosts=hosts))) as http:
        for host in ("evil.example", "", "x y"):
            assert (await http.get("/health", headers={"host": host})).status_code == 200


@given(st.text())
def test_any_text_is_parsed_as_a_host_name_or_none(text: str) -> None:
    name = host_name(text)
    assert name is None or (name == name.lower() and not set(name) & set("/@#? ,"))


# -- the Origin header ------------------------------------------------------------------------------------

BEHIND_TLS = {"host": "llm.example", "x-forwarded-proto": "https"}
OWN_PAGES: list[tuple[str, dict[str, str]]] = [
    *((origin, {}) for origin in ("http://localhost:8000", "HTTP://LOCALHOST:8000", PAGE, f"{PAGE}:443")),
    ("http://localhost", {"host": "localhost"}),
    ("http://localhost:80", {"host": "localhost"}),
    ("http://localhost", {"host": "localhost:80"}),
    ("http://[::1]:8000", {"host": "[::1]:8000"}),
    ("https://llm.example", BEHIND_TLS),
    ("https://llm.example:443", {**BEHIND_TLS, "x-forwarded-proto": "https, http"}),
]
NO_PAGES = [
    *("null", "NULL", "", "https://localhost:8000", "http://localhost", "http://localhost:8001"),
    *("http://127.0.0.1:8000", "ftp://localhost:8000", "file://", "localhost:8000", "//localhost:8000"),
    *("http://localhost:8000@evil.example", "http://evil.example/localhost:8000"),
    *("http://localhost:8000#evil", "http://localhost:8000, http://evil.example"),
    *("http://page.example", "https://page.example:8443", "https://page.example.evil"),
]
OTHER_PAGES: list[tuple[str, dict[str, str]]] = [
    *((origin, {}) for origin in NO_PAGES),
    ("null", {"host": "localhost"}),
    ("https://localhost", {"host": "localhost:80"}),
    ("http://llm.example", BEHIND_TLS),
]


@pytest.mark.parametrize(("origin", "headers"), OWN_PAGES)
async def test_a_page_of_the_server_may_call(named: Starlette, origin: str, headers: dict[str, str]) -> None:
    async with client(named) as http:
        answer = await http.post("/tokenize", json={"content": "a"}, headers={**headers, "origin": origin})
        assert answer.status_code == 200


@pytest.mark.parametrize(("origin", "headers"), OTHER_PAGES)
async def test_another_page_may_not_call(named: Starlette, origin: str, headers: dict[str, str]) -> None:
    async with client(named) as http:
        for method in ("POST", "DELETE", "PUT", "PATCH"):
            answer = await http.request(method, "/v1/cache", headers={**headers, "origin": origin})
            assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_not_allowed")
            assert "--cors-origin" in str(error_of(answer)["message"])
        assert (await http.get("/health", headers={**headers, "origin": origin})).status_code == 200


@given(st.text() | st.from_regex(r"[a-z]{0,5}:?/{0,2}[\\[\\]:.@a-z0-9/#?]{0,20}"))
def test_a_canonical_origin_stays_the_same(text: str) -> None:
    assert canonical_origin(canonical_origin(text)) == canonical_origin(text)


# -- administrators without keys --------------------------------------------------------------------------

LAN = "192.168.1.7"
ADMIN_ROUTES = [("DELETE", "/v1/cache"), ("GET", "/v1/cache/stats"), ("GET", "/v1/adapters")]


async def statuses(app: Starlette, peer: str, **headers: str) -> set[int]:
    async with client(app, peer) as http:
        return {(await http.request(*route, headers=headers)).status_code for route in ADMIN_ROUTES}


LOCAL_PEERS = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
REMOTE_PEERS = [LAN, "2001:db8::1", "::ffff:10.0.0.1", "unknown"]
FORWARDED = [
    *({"x-forwarded-for": hops} for hops in (LAN, f"127.0.0.1, {LAN}", f"{LAN}, 127.0.0.1", "unknown")),
    {"forwarded": f"for={LAN}"},
    {"forwarded": 'for="[2001:db8::1]:80"'},
]


@pytest.mark.parametrize("trusted", [(), (ip_network("127.0.0.0/8"), ip_network("0.0.0.0/0"))])
@pytest.mark.parametrize(
    ("peer", "headers", "is_administrator"),
    [
        *((peer, {}, True) for peer in LOCAL_PEERS),
        *((peer, {}, False) for peer in REMOTE_PEERS),
        *(("127.0.0.1", headers, False) for headers in FORWARDED),
        (LAN, {"x-forwarded-for": "127.0.0.1"}, False),
        *(("127.0.0.1", {"host": host}, False) for host in ("evil.example", "")),
        ("127.0.0.1", {"host": "10.0.0.1:80"}, True),
    ],
)
async def test_only_local_clients_are_administrators(
    engine: FakeEngine, trusted: Any, peer: str, headers: dict[str, str], is_administrator: bool
) -> None:
    """A client behind a proxy on this machine is not local, whether the proxy is trusted or not.

    Nor is a page under another host name: any name may resolve to this machine.
    """
    app = api(engine, msgspec.structs.replace(OPTIONS, is_admin_open=False, trusted_proxies=trusted))
    codes = await statuses(app, peer, **headers)
    assert codes <= {200, 204} if is_administrator else codes == {403}


@pytest.mark.parametrize("peer", REMOTE_PEERS)
async def test_remote_clients_may_use_other_routes(engine: FakeEngine, peer: str) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, is_admin_open=False)), peer) as http:
        for path in ("/v1/models", "/metrics", "/v1/stats", "/v1/requests", "/version", "/"):
            assert (await http.get(path)).status_code == 200
        assert (await http.post("/tokenize", json={"content": "a"})).status_code == 200
        error = error_of(await http.delete("/v1/cache"))
        assert error["code"] == "missing_scope"
        assert "--open-admin" in str(error["message"])


async def test_a_key_overrides_the_clients_address_and_the_check_can_be_off(engine: FakeEngine) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, is_admin_open=False, api_key="k"))
    assert await statuses(app, LAN, **{"x-api-key": "k"}) <= {200, 204}
    assert await statuses(app, "127.0.0.1") == {401}
    assert await statuses(api(engine), LAN) <= {200, 204}


def test_only_local_addresses_are_loopback() -> None:
    local: list[Any] = ["127.0.0.1", "::1", "localhost", "127.1.2.3", "::ffff:127.0.0.1"]
    other: list[Any] = ["0.0.0.0", "::", "10.0.0.1", "", "localhost.evil", "127.0.0.1.evil", "::ffff:1.2.3.4"]
    assert all(map(is_loopback, local))
    assert not any(map(is_loopback, other))
