"""Hostile bodies do not stall the event loop for other requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.sync.client import connect

from tests.loop_watch import MARK
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

HI = b'"messages":[{"role":"user","content":"hi"}]'
CHAT = "/v1/chat/completions"


def list_of(item: bytes, num_bytes: int) -> bytes:
    return b"[" + b",".join([item] * (num_bytes // (len(item) + 1))) + b"]"


def object_of(value: bytes, num_bytes: int) -> bytes:
    fields = (b'"%d":%s' % (number, value) for number in range(num_bytes // (len(value) + 9)))
    return b"{" + b",".join(fields) + b"}"


def rules() -> bytes:
    """Return a grammar of 97 kB whose rules each refer to the next."""
    links = "\n".join(f'r{number} ::= "a" r{number + 1}' for number in range(5_000))
    return json.dumps(f'root ::= r0\n{links}\nr5000 ::= "x"').encode()


def definitions() -> bytes:
    """Return a schema whose definitions are each an array of the next."""
    links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2_500)}
    schema = {"$defs": {**links, "d2500": {"type": "null"}}, "$ref": "#/$defs/d0"}
    return json.dumps({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}).encode()


def document() -> bytes:
    """Return a conversation with 15 MB of text, which is more than one may have."""
    data = base64.b64encode(b"words " * 2_500_000)
    file = b'{"type":"file","file":{"filename":"a.txt","file_data":"%s"}}' % data
    return b'{"messages":[{"role":"user","content":[' + file + b"]}]}"


def prompts(number: int) -> bytes:
    return b'{"prompt":' + list_of(b'"abcd"', 7 * number) + b',"max_tokens":1}'


POSTS = {
    "wrong biases, 2 MB": (CHAT, lambda: b'{"logit_bias":' + object_of(b'"x"', 1_900_000) + b"," + HI + b"}"),
    "right biases": (CHAT, lambda: b'{"logit_bias":' + object_of(b"1", 900_000) + b"," + HI + b"}"),
    "lists in an unknown field": (CHAT, lambda: b'{"x":' + list_of(b"[]", 8_000_000) + b"," + HI + b"}"),
    "many messages": (
        CHAT,
        lambda: b'{"messages":' + list_of(b'{"role":"user","content":"x"}', 900_000) + b"}",
    ),
    "metadata": (CHAT, lambda: b'{"metadata":' + object_of(b"1", 1_000_000) + b"," + HI + b"}"),
    "metadata of a batch": ("/v1/batches", lambda: b'{"metadata":' + object_of(b"1", 3_900_000) + b"}"),
    "depth": (CHAT, lambda: b'{"x":' + b"[" * 8_000_000),
    "60,000 prompts": ("/v1/completions", lambda: prompts(60_000)),
    "many sequences": ("/v1/completions", lambda: b'{"n":8,"max_tokens":1,"prompt":%s}' % list_of(
        list_of(b"70", 9_000), 128 * 9_000
    )),
    "a chain of rules": (CHAT, lambda: b'{"max_tokens":1,"grammar":' + rules() + b"," + HI + b"}"),
    "a chain of definitions": (
        CHAT,
        lambda: b'{"max_tokens":1,"response_format":' + definitions() + b"," + HI + b"}",
    ),
    "pieces, 1 MB": ("/tokenize", lambda: b'{"with_pieces":true,"content":"' + b"a b " * 250_000 + b'"}'),
    "tokens": ("/detokenize", lambda: b'{"tokens":' + list_of(b"70", 1_200_000) + b"}"),
    "a document, 15 MB": (CHAT, document),
    "prose": (CHAT, lambda: b'{"messages":[{"role":"user","content":"' + b"a\\n" * 3_000_000 + b'"}]}'),
}  # fmt: skip
# A frame of a WebSocket is unmasked, checked and decoded in one go, which takes some 2 ms per megabyte.
MESSAGES = {
    "lists": lambda: b'{"type":"response.create","x":' + list_of(b"[]", 8_000_000) + b"}",
    "names": lambda: b'{"type":"response.create",' + object_of(b"1", 8_000_000)[1:],
    "text": lambda: b'{"type":"response.create","input":"' + b"a, b: " * 2_000_000 + b'"}',
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--model", str(tiny_model_path()), "--ctx-size", "4096")
    with ServerProcess(*options, module="tests.loop_watch") as process:
        yield process


def check_no_stall(server: ServerProcess, send: Callable[[], None]) -> None:
    """Fail after three stalls in a row. On a busy machine the same work takes twice as long now and then."""
    for _ in range(3):
        before = len(server.lines)
        send()
        assert server.get("/health").status_code == 200
        stalls = [line for line in server.lines[before:] if MARK in line]
        if not stalls:
            return
    pytest.fail("".join(stalls))


def status(server: ServerProcess, name: str) -> int:
    path, body = POSTS[name]
    return server.post(path, content=body()).status_code


@pytest.mark.parametrize("name", POSTS)
def test_a_hostile_body(server: ServerProcess, name: str) -> None:
    def send() -> None:
        assert status(server, name) in (200, 400, 413)

    check_no_stall(server, send)


def test_ten_at_once(server: ServerProcess) -> None:
    def send() -> None:
        with ThreadPoolExecutor(10) as clients:
            assert set(clients.map(status, [server] * 10, ["tokens"] * 10)) <= {200, 400, 413, 503}

    check_no_stall(server, send)


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_hostile_message(server: ServerProcess, path: str, name: str) -> None:
    def send() -> None:
        with connect(
            server.url.replace("http", "ws") + path, max_size=None, open_timeout=DEADLINE_S
        ) as socket:
            socket.send(MESSAGES[name](), text=True)
            assert '"error"' in str(socket.recv(timeout=DEADLINE_S))

    check_no_stall(server, send)
