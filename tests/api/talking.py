"""What clients send, and how they read what comes back."""

from __future__ import annotations

import json

import httpx

MESSAGES = [{"role": "user", "content": "hi"}]


async def chat(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 8, "seed": 1, "temperature": 0, **fields}
    return await http.post("/v1/chat/completions", json=body)


async def complete(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"prompt": "hi", "max_tokens": 8, "seed": 1, "temperature": 0, **fields}
    return await http.post("/v1/completions", json=body)


def events(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line[6:]) for line in lines]


def error_of(response: httpx.Response) -> dict[str, object]:
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return dict(response.json()["error"])
