"""Clients are identified by key or address for fair scheduling, and no name gives access to another client's
requests."""

from __future__ import annotations

from ipaddress import ip_network

import msgspec
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.http.keys import ALL_SCOPES, ANYBODY, Client, Identity, Key, client_address
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client, num_live, started
from tests.api.sockets import opened
from tests.api.talking import MESSAGES
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48"))
CHAT = "/v1/chat/completions"
LONG = {"messages": MESSAGES, "ignore_eos": True}


def scope(peer: str | None, *headers: tuple[str, str]) -> Scope:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return {"type": "http", "client": (peer, 1) if peer else None, "headers": raw}


FORWARDED_FOR = {
    "198.51.100.1": "198.51.100.1",
    "203.0.113.9, 198.51.100.1": "198.51.100.1",
    "203.0.113.9, 198.51.100.1, 10.9.9.9": "198.51.100.1",
    "203.0.113.9,198.51.100.1:4711 ,2001:db8:1::5": "198.51.100.1",
    "[2001:db8:2:3::1]:80": "2001:db8:2:3::/64",
    "[2001:db8:2:3::1]": "2001:db8:2:3::/64",
    "10.2.2.2, 10.3.3.3": "10.2.2.2",
    "198.51.100.1, unknown": "10.1.1.1",
    "198.51.100.1, unknown, 10.4.4.4": "10.4.4.4",
    "": "10.1.1.1",
    " , ": "10.1.1.1",
    "," * 10_000: "10.1.1.1",
    "9" * 10_000: "10.1.1.1",
}
FORWARDED = {
    "for=198.51.100.1": "198.51.100.1",
    'for=203.0.113.9;proto=http, For="[2001:db8:2:3::1]:80";by=10.1.1.1': "2001:db8:2:3::/64",
    'for="_hidden"': "10.1.1.1",
    'for="203.0.113.9, for=198.51.100.1': "198.51.100.1",
    "proto=https": "10.1.1.1",
}
OLDER = ("x-forwarded-for", "198.51.100.77")


@pytest.mark.parametrize(
    ("peer", "headers", "address"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        ("::ffff:192.0.2.7", [], "192.0.2.7"),
        ("2001:db8:2:3:4:5:6:7", [], "2001:db8:2:3::/64"),
        ("2001:db8:2:3::1", [], "2001:db8:2:3::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("", [], None),
        ("a name", [], None),
        (None, [], None),
        ("192.0.2.7", [OLDER], "192.0.2.7"),
        ("192.0.2.7", [("forwarded", "for=198.51.100.1")], "192.0.2.7"),
        *(("10.1.1.1", [("x-forwarded-for", hops)], address) for hops, address in FORWARDED_FOR.items()),
        *(("10.1.1.1", [("forwarded", value)], address) for value, address in FORWARDED.items()),
        *(("10.1.1.1", [("forwarded", value), OLDER], "198.51.100.77") for value in FORWARDED),
        ("10.1.1.1", [("x-forwarded-for", "203.0.113.9"), OLDER], "198.51.100.77"),
    ],
)
def test_the_address_is_the_peers_or_the_last_hop_before_trusted_proxies(
    peer: str | None, headers: list[tuple[str, str]], address: str | None
) -> None:
    """`Forwarded` counts only without `X-Forwarded-For`. Repeated headers are one list."""
    assert client_address(scope(peer, *headers), TRUSTED) == address


def test_clients_of_one_address_are_a_group_unless_they_have_named_keys() -> None:
    here = msgspec.structs.replace(ANYBODY, address="192.0.2.7")
    with_some_key = msgspec.structs.replace(here, digest="ab" * 32)
    shared = Identity(Key(name="", digest=b""), "cd" * 32, "192.0.2.7")
    groups = {Client.group_of(one) for one in (here, with_some_key, shared)}
    assert groups == {"peer:@192.0.2.7"}
    assert Client.group_of(msgspec.structs.replace(here, address="192.0.2.8")) not in groups
    assert Client.group_of(Identity(Key(name="ann", digest=b""), "ef" * 32, "192.0.2.7")) == ""
    assert Client.group_of(ANYBODY) == ""


ANN = Identity(Key(name="ann", digest=b""), "0" * 64, "192.0.2.1")
ROOT = Identity(Key(name="root", digest=b"", scopes=ALL_SCOPES), "1" * 64, "192.0.2.2")
SHARED = Identity(Key(name="", digest=b"", scopes=ALL_SCOPES), "2" * 64, "192.0.2.3")
STRANGER = Identity(None, None, "192.0.2.4")
WITH_UNCHECKED_KEY = Identity(None, "3" * 64, "192.0.2.4")


def test_a_named_key_or_else_the_user_identifies_a_client() -> None:
    assert Client.of(ANN, "bob") == Client.of(msgspec.structs.replace(ANN, address="192.0.2.9"), None)
    assert Client.of(SHARED, "bob") == Client.of(STRANGER, "bob")
    clients = [
        Client.of(identity, None) for identity in (ANN, ROOT, SHARED, STRANGER, WITH_UNCHECKED_KEY, ANYBODY)
    ]
    assert len({one.label for one in clients}) == len(clients)
    assert [Client.of_label(one.label) for one in clients] == clients


@pytest.mark.parametrize("user", ["ann", "key:ann", ":", "192.0.2.1"])
def test_a_key_does_not_own_requests_of_a_user_with_its_name(user: str) -> None:
    for sender in (SHARED, STRANGER):
        request = Client.of_label(Client.of(sender, user).label)
        assert not request.is_owned_by(ANN)
        assert request.is_owned_by(ROOT)
        assert request.shown_to(ROOT) == user
    assert Client.of(ANN, user).is_owned_by(ANN)


def test_a_key_without_a_name_and_without_scopes_owns_nothing() -> None:
    unnamed = Identity(Key(name="", digest=b""), "2" * 64, "192.0.2.4")
    for owner in (unnamed, ANN, STRANGER):
        assert not Client.of(owner, None).is_owned_by(unnamed)


def test_only_keys_of_administrators_see_addresses() -> None:
    plain, with_key = Client.of(STRANGER, None), Client.of(WITH_UNCHECKED_KEY, None)
    assert (plain.shown_to(ROOT), with_key.shown_to(ROOT)) == ("192.0.2.4", "3" * 16 + "@192.0.2.4")
    for other in (STRANGER, WITH_UNCHECKED_KEY, ANYBODY, ANN):
        assert (plain.shown_to(other), with_key.shown_to(other)) == ("", "3" * 16)


def from_address(address: str, app: ASGIApp) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": (address, 1)}, receive, send)

    return call


@pytest.fixture
async def held() -> FakeEngine:
    return FakeEngine(is_held=True)


async def test_two_addresses_are_two_clients_and_a_trusted_proxy_names_others(held: FakeEngine) -> None:
    app = api(held, msgspec.structs.replace(OPTIONS, trusted_proxies=TRUSTED))
    named = {"x-forwarded-for": "198.51.100.1"}
    async with (
        started(from_address("192.0.2.1", app), held, CHAT, LONG),
        started(from_address("192.0.2.2", app), held, CHAT, LONG, named),
        started(from_address("10.0.0.1", app), held, CHAT, LONG, named),
        client(app) as http,
    ):
        await eventually(lambda: num_live(held) == 3)
        found = [live.client for live in held.requests()]
        listing = (await http.get("/v1/requests")).text
    assert sorted(found) == ["peer:@192.0.2.1", "peer:@192.0.2.2", "peer:@198.51.100.1"]
    assert not any(address in listing for address in ("192.0.2.", "198.51"))


async def test_a_websockets_requests_have_its_peers_address(held: FakeEngine) -> None:
    async with opened(from_address("2001:db8:7:8::1", api(held))) as socket:
        socket.send({**LONG, "request_id": "a"})
        await eventually(lambda: num_live(held) == 1)
        assert held.requests()[0].client == "peer:@2001:db8:7:8::/64"
