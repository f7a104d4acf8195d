"""The README's curl, to the byte."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.native

BODY = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4, "temperature": 0}


def curl(url: str, body: object, *options: str) -> str:
    data = body if isinstance(body, str) else json.dumps(body)
    command = ["curl", "-sS", "-N", *options, url, "-H", "Content-Type: application/json", "-d", data]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout


def test_a_stream_is_made_of_data_lines_and_ends_with_done(server: ServerProcess) -> None:
    out = curl(server.url + "/v1/chat/completions", {**BODY, "stream": True}, "-D", "-")
    head, _, stream = out.replace("\r\n", "\n").partition("\n\n")
    assert "HTTP/1.1 200" in head
    for header in (
        "content-type: text/event-stream",
        "cache-control: no-",
        "x-accel-buffering: no",
        "x-request-id: ",
    ):
        assert header in head.lower()
    events = [event for event in stream.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    first = json.loads(events[0][6:])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("body", ["{", "[]", "\xff", '{"messages": 5}'])
def test_bodies_that_are_wrong_get_an_error_object(server: ServerProcess, body: str) -> None:
    named = ("-H", "X-Request-Id: my-id", "-D", "-")
    out = curl(server.url + "/v1/chat/completions", body, "-w", "%{http_code}", *named)
    assert out.endswith("400")
    assert "x-request-id: my-id" in out.lower()
    assert set(json.loads(out[out.index("{") : -3])["error"]) == {"message", "type", "param", "code"}


def test_tokenize_and_back(server: ServerProcess) -> None:
    tokens = json.loads(curl(server.url + "/tokenize", {"content": "Grüße, 世界 🌍"}))["tokens"]
    back = json.loads(curl(server.url + "/detokenize", {"tokens": tokens}))
    assert back["content"].strip() == "Grüße, 世界 🌍"
