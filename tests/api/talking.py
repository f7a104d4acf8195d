"""Sends requests and reads responses and errors as clients do."""

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


def messages_error_of(response: httpx.Response) -> dict[str, object]:
    """Error of a response on one of Anthropic's paths."""
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert set(body["error"]) == {"type", "message"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return dict(body["error"])


def error_by_path(response: httpx.Response) -> dict[str, object]:
    """Error in the shape of the response's path. Each shape has a message; Ollama's has nothing else."""
    if response.request.url.path.startswith("/api/"):
        return {"message": response.json()["error"]}
    is_of_messages = response.request.url.path.startswith("/v1/messages")
    return messages_error_of(response) if is_of_messages else error_of(response)


def error_of(response: httpx.Response) -> dict[str, object]:
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return dict(response.json()["error"])
