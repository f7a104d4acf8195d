"""*wires*: the bytes of some 200 answers of all families of routes, recorded in a file or compared."""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Union

import httpx
from bench.servers import OUR_COMMAND, ServerSpec, running

_TIMEOUT_S = 120.0
_HEADERS = ("content-type", "retry-after", "cache-control", "allow", "content-disposition")
_SENT = {"content-type": "application/json"}
_SHOWN_LINES = 40

_ID = re.compile(
    r"\b(?:chatcmpl|cmpl|resp|msg|rs|fc|call|toolu|file|batch|batch_req|conv|req|ctc|score|rerank|embd|classify|gen|cmp)"
    r"[-_][0-9A-Za-z_-]{6,}|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
)
_MEASURED = re.compile(
    r'("(?:created|[a-z_]*(?:_at|_ms|_s|duration|per_second|_ts|_time|_bytes)|uptime|pid|threads_computing|draft_n\w*|t_\w+)":\s*)'
    r'(?:-?\d[\d.eE+-]*|"2\d{3}-[^"]*")'
)

Body = Union[dict[str, object], bytes, tuple[str, bytes]]
"""JSON, or bytes that are sent as they are, or a file with its name."""
Request = tuple[str, str, Body]
"""Method, path and body. `{NAME}` in the path or the body is an id of an earlier answer to `NAME`."""

_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOOL = {
    "name": "weather",
    "description": "The weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Bonn", "Rome"]}},
        "required": ["city"],
    },
}
_SAID = [{"role": "user", "content": "Hello"}]
_TALK = [*_SAID, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Count to three"}]
_BASE = {"model": "demo", "temperature": 0, "seed": 1}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="is written if it does not exist, else compared")


def run(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        models = ("--model", "demo", "--model", "minilm")
        stored = ("--jobs-db", f"{folder}/jobs.db", "--calibrate", "never", "--speculation", "off")
        command = (*OUR_COMMAND, *models, *stored, "--port", "{port}")
        with running(ServerSpec("ours", command, "/ready"), []) as server:
            found = _recorded(f"http://127.0.0.1:{server.port}")
    if not asked.file.exists():
        asked.file.write_text(found, encoding="utf-8")
        print(f"{found.count(_MARK)} answers are recorded")
        return 0
    expected = asked.file.read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "recorded", "now", lineterm="", n=1
    )
    shown = list(itertools.islice(lines, _SHOWN_LINES))
    print("\n".join(shown) or f"{found.count(_MARK)} answers are equal")
    return 1 if shown else 0


_MARK = "\n==== "


def _recorded(url: str) -> str:
    parts, ids = [""], _Ids()
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        for name, (method, path, body) in _requests():
            sent_to = ids.filled(path)
            if isinstance(body, tuple):
                answer = client.post(sent_to, files={"file": body}, data={"purpose": "batch"})
            else:
                content = body if isinstance(body, bytes) else ids.filled(json.dumps(body)).encode()
                answer = client.request(method, sent_to, content=content, headers=_SENT)
            ids.learn(name, answer.text)
            head = "".join(f"{key}: {answer.headers[key]}\n" for key in _HEADERS if key in answer.headers)
            text = _MEASURED.sub(r"\g<1>0", ids.normalised(head + "\n" + answer.text))
            parts.append(f"{name} {method} {path}\n{answer.status_code}\n{text}\n")
            if name == "batch":
                _await_end(client, ids.filled("/v1/batches/{batch}"))
    return _MARK.join(parts)


def _await_end(client: httpx.Client, path: str) -> None:
    while client.get(path).json()["status"] not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)


class _Ids:
    """Numbers ids in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count(1).__next__)
        self._by_name: dict[str, str] = {}

    def learn(self, name: str, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            return
        if isinstance(found, dict) and isinstance(found.get("id"), str):
            self._by_name[name] = found["id"]
            if found.get("output_file_id"):
                self._by_name["output_file"] = found["output_file_id"]

    def filled(self, text: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda match: self._by_name.get(match[1], match[0]), text)

    def normalised(self, text: str) -> str:
        return _ID.sub(lambda match: f"<id {self._numbers[match[0]]}>", text)


def _requests() -> Iterator[tuple[str, Request]]:
    yield from _numbered("chat", "/v1/chat/completions", _CHAT, {**_BASE, "messages": _SAID, "max_tokens": 6})
    yield from _numbered("completion", "/v1/completions", _TEXT, {**_BASE, "prompt": "Once", "max_tokens": 6})
    yield from _numbered(
        "responses", "/v1/responses", _RESPONSES, {**_BASE, "input": "Hello", "max_output_tokens": 16}
    )
    yield from _numbered(
        "messages",
        "/v1/messages",
        _MESSAGES,
        {"model": "demo", "temperature": 0, "messages": _SAID, "max_tokens": 6},
    )
    options = {"temperature": 0, "seed": 1, "num_predict": 6}
    yield from _numbered(
        "ollama_chat", "/api/chat", _OLLAMA_CHAT, {"model": "demo", "messages": _SAID, "options": options}
    )
    yield from _numbered(
        "ollama_text", "/api/generate", _OLLAMA_TEXT, {"model": "demo", "prompt": "Once", "options": options}
    )
    yield from _numbered("llama", "/completion", _LLAMA, {**_BASE, "prompt": "Once", "n_predict": 6})
    yield from _numbered("old", "/v1/generate", _OLD, {"prompt": "Once", "max_tokens": 6, "temperature": 0})
    for path, bodies in _OTHERS.items():
        yield from _numbered(path.strip("/").replace("/", "_"), path, bodies, {})
    yield from _STORED
    for path in _SEEN:
        yield f"get {path}", ("GET", path, b"")


def _numbered(
    name: str, path: str, each: list[dict[str, object]], base: dict[str, object]
) -> Iterator[tuple[str, Request]]:
    for number, more in enumerate(each):
        body = {key: value for key, value in {**base, **more}.items() if value is not ...}
        yield f"{name}{number}", ("POST", path, body)


_STREAMS: list[dict[str, object]] = [{}, {"stream": True}]
_WRONG: list[dict[str, object]] = [
    {"model": "nothing"},
    {"temperature": 9},
    {"temperature": "hot"},
    {"no_such_field": 1},
    {"max_tokens": -5},
    {"seed": 1.5},
]
_FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}}
_FUNCTION = {"type": "function", "function": _TOOL}
_CHAT: list[dict[str, object]] = [
    *_STREAMS,
    {"stream": True, "stream_options": {"include_usage": True}},
    {"messages": _TALK, "n": 2},
    {"stream": True, "n": 2},
    {"logprobs": True, "top_logprobs": 2},
    {"stream": True, "logprobs": True},
    {"response_format": _FORM, "max_tokens": 40},
    {"response_format": _FORM, "max_tokens": 40, "stream": True},
    {"response_format": {"type": "json_object"}, "max_tokens": 20},
    {"tools": [_FUNCTION], "tool_choice": "required", "max_tokens": 60},
    {"tools": [_FUNCTION], "tool_choice": "required", "max_tokens": 60, "stream": True},
    {"tools": [_FUNCTION], "tool_choice": "none"},
    {
        "tools": [_FUNCTION],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 60,
    },
    {"functions": [_TOOL], "function_call": {"name": "weather"}, "max_tokens": 60},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"guided_regex": "[a-c]{3}"},
    {"guided_grammar": 'root ::= "a" "b"'},
    {"stop": ["e"]},
    {"max_tokens": ..., "max_completion_tokens": 3},
    {"logit_bias": {"5": 100}},
    {"metadata": {"a": "b"}, "user": "me", "service_tier": "auto"},
    {"messages": [{"role": "system", "content": "Be brief"}, *_TALK]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    {
        "messages": [
            *_SAID,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "sun"},
        ]
    },
    {"messages": []},
    {"messages": ...},
    {"messages": [{"role": "nobody", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}],
            }
        ]
    },
    {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "x"}}]}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
    {"response_format": {"type": "nothing"}},
    {"tools": [{"type": "function", "function": {"name": "no good name!"}}]},
    {"messages": [{"role": "user", "content": "word " * 5000}]},
    {"guided_regex": "("},
    *_WRONG,
]
_TEXT: list[dict[str, object]] = [
    *_STREAMS,
    {"prompt": ["One", "Two"]},
    {"prompt": [1, 2, 3]},
    {"echo": True, "logprobs": 2},
    {"stream": True, "echo": True, "logprobs": 1},
    {"n": 2, "best_of": 2},
    {"suffix": "end"},
    {"stop": "e"},
    {"prompt": ...},
    {"prompt": []},
    {"prompt": [-1]},
    {"best_of": 1, "n": 2},
    *_WRONG,
]
_RESPONSES: list[dict[str, object]] = [
    {"store": False},
    {"store": False, "stream": True},
    {"store": False, "input": _TALK, "instructions": "Be brief"},
    {
        "store": False,
        "text": {"format": {"type": "json_schema", "name": "person", "schema": _SCHEMA}},
        "max_output_tokens": 40,
    },
    {
        "store": False,
        "tools": [{"type": "function", **_TOOL}],
        "tool_choice": "required",
        "max_output_tokens": 60,
    },
    {
        "store": False,
        "tools": [{"type": "function", **_TOOL}],
        "tool_choice": "required",
        "max_output_tokens": 60,
        "stream": True,
    },
    {
        "store": False,
        "tools": [
            {
                "type": "custom",
                "name": "code",
                "format": {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"},
            }
        ],
        "tool_choice": "required",
        "max_output_tokens": 60,
    },
    {"store": False, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
    {
        "store": False,
        "input": [
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "sun"},
        ],
    },
    {"store": False, "metadata": {"a": "b"}, "truncation": "auto", "reasoning": {"effort": "low"}},
    {"store": False, "input": ...},
    {"store": False, "input": [{"type": "nothing"}]},
    {"store": False, "previous_response_id": "resp_nothing0"},
    {"store": False, "tools": [{"type": "web_search"}]},
    {"store": False, "max_output_tokens": 1},
    {"store": False, "background": True, "stream": False},
    *({"store": False, **each} for each in _WRONG),
]
_MESSAGES: list[dict[str, object]] = [
    *_STREAMS,
    {"system": "Be brief", "messages": _TALK},
    {"system": [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}]},
    {
        "tools": [{"name": "weather", "input_schema": _TOOL["parameters"]}],
        "tool_choice": {"type": "any"},
        "max_tokens": 60,
    },
    {
        "tools": [{"name": "weather", "input_schema": _TOOL["parameters"]}],
        "tool_choice": {"type": "any"},
        "max_tokens": 60,
        "stream": True,
    },
    {"stop_sequences": ["e"]},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "stop_sequences": ["e"]},
    {"metadata": {"user_id": "me"}, "top_k": 5},
    {"max_tokens": ...},
    {"messages": []},
    {"messages": [{"role": "user", "content": [{"type": "nothing"}]}]},
    *_WRONG[:4],
]
_OLLAMA_CHAT: list[dict[str, object]] = [
    {},
    {"stream": False},
    {"stream": False, "format": "json"},
    {"stream": False, "format": _SCHEMA},
    {"stream": False, "tools": [_FUNCTION]},
    {"stream": False, "logprobs": True, "top_logprobs": 1},
    {"stream": False, "think": True},
    {"messages": []},
    {"stream": False, "keep_alive": "5m", "options": {"num_predict": 2, "stop": ["e"]}},
    {"messages": [{"role": "user", "content": "x", "images": ["x"]}]},
    {"options": {"temperature": "hot"}},
    {"model": "nothing"},
]
_OLLAMA_TEXT: list[dict[str, object]] = [
    {},
    {"stream": False},
    {"stream": False, "raw": True},
    {"stream": False, "template": "{{ .Prompt }}!"},
    {"stream": False, "system": "Be brief", "suffix": ""},
    {"stream": False, "context": [1, 2]},
    {"prompt": ""},
    {"stream": False, "template": "{{ .Nothing"},
    {"stream": False, "format": "xml"},
    {"model": ...},
]
_LLAMA: list[dict[str, object]] = [
    *_STREAMS,
    {"prompt": ["One", [1, 2]]},
    {"n_probs": 2},
    {"stream": True, "n_probs": 1, "timings_per_token": True},
    {"json_schema": _SCHEMA, "n_predict": 30},
    {"grammar": 'root ::= "ab"'},
    {"return_tokens": True, "response_fields": ["content", "tokens"]},
    {"stop": ["e"]},
    {"prompt": {"prompt_string": "x"}},
    {"grammar": "root ::="},
    {"n_predict": "x"},
    {"samplers": ["nothing"]},
]
_OLD: list[dict[str, object]] = [*_STREAMS, {"prompt": ...}, {"temperature": 9}]
_OTHERS: dict[str, list[dict[str, object]]] = {
    "/v1/generate/batch": [{"prompts": ["One", "Two"], "max_tokens": 3, "temperature": 0}, {"prompts": []}],
    "/infill": [{"input_prefix": "a", "input_suffix": "b", "n_predict": 2}],
    "/v1/chat/completions/input_tokens": [{"messages": _SAID}, {}],
    "/v1/messages/count_tokens": [{"model": "demo", "messages": _SAID}, {}],
    "/v1/responses/input_tokens": [{"model": "demo", "input": "Hello"}, {"input": 1}],
    "/v1/responses/compact": [{"model": "demo", "input": _TALK, "temperature": 0, "max_output_tokens": 16}],
    "/tokenize": [{"content": "Hello"}, {"content": "Hello", "with_pieces": True}, {"messages": _SAID}, {}],
    "/detokenize": [{"tokens": [1, 2, 3]}, {"tokens": ["x"]}],
    "/apply-template": [{"messages": _SAID}, {"messages": _SAID, "tools": [_FUNCTION]}],
    "/v1/embeddings": [
        {"model": "minilm", "input": "Hello", "dimensions": 4},
        {"model": "minilm", "input": ["One", "Two"], "encoding_format": "base64"},
        {"model": "demo", "input": "Hello"},
        {"model": "minilm", "input": []},
        {"model": "minilm", "input": "x " * 3000},
    ],
    "/embedding": [{"model": "minilm", "content": "Hello", "embd_normalize": 2}],
    "/api/embed": [{"model": "minilm", "input": "Hello"}, {"model": "minilm", "input": []}],
    "/api/embeddings": [{"model": "minilm", "prompt": "Hello"}],
    "/v1/rerank": [
        {"model": "minilm", "query": "fruit", "documents": ["apple", "car"], "return_documents": True},
        {"model": "minilm", "query": "fruit", "documents": []},
        {"model": "minilm", "query": "fruit", "documents": ["a"], "top_n": 0},
    ],
    "/v1/score": [{"model": "minilm", "text_1": "fruit", "text_2": ["apple", "car"]}],
    "/v1/classify": [{"model": "minilm", "input": "Hello"}],
    "/api/show": [{"model": "demo"}, {"model": "nothing"}, {}],
    "/api/create": [{"model": "short", "from": "demo", "system": "Be brief"}],
    "/api/copy": [{"source": "demo", "destination": "twin"}, {"source": "nothing", "destination": "x"}],
    "/api/pull": [{"model": "hf:nobody/nothing"}],
    "/api/push": [{"model": "demo"}],
    "/v1/models/pull": [{"model": "hf:nobody/nothing"}],
    "/v1/adapters": [{"name": "x", "path": "nothing.gguf"}],
    "/v1/streams/lookup": [{"conversation_ids": ["a"]}],
    "/v1/chat/completions/control": [{"id": "chatcmpl-nothing", "action": "stop"}],
}
_LINES = b"".join(
    json.dumps(
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
    ).encode()
    + b"\n"
    for number, body in enumerate(({**_BASE, "messages": _SAID, "max_tokens": 3}, {"messages": []}))
)
_STORED: list[tuple[str, Request]] = [
    (
        "response",
        ("POST", "/v1/responses", {**_BASE, "input": "Hello", "max_output_tokens": 16, "store": True}),
    ),
    (
        "next",
        (
            "POST",
            "/v1/responses",
            {**_BASE, "input": "More", "max_output_tokens": 16, "previous_response_id": "{response}"},
        ),
    ),
    ("read", ("GET", "/v1/responses/{response}", b"")),
    ("items", ("GET", "/v1/responses/{next}/input_items?order=asc&limit=2", b"")),
    ("cancel", ("POST", "/v1/responses/{response}/cancel", {})),
    ("forget", ("DELETE", "/v1/responses/{response}", b"")),
    ("gone", ("GET", "/v1/responses/{response}", b"")),
    (
        "conversation",
        ("POST", "/v1/conversations", {"metadata": {"a": "b"}, "items": [{"type": "message", **_SAID[0]}]}),
    ),
    (
        "in_it",
        (
            "POST",
            "/v1/responses",
            {**_BASE, "input": "More", "max_output_tokens": 16, "conversation": "{conversation}"},
        ),
    ),
    ("its_items", ("GET", "/v1/conversations/{conversation}/items", b"")),
    ("changed", ("POST", "/v1/conversations/{conversation}", {"metadata": {"c": "d"}})),
    ("deleted", ("DELETE", "/v1/conversations/{conversation}", b"")),
    ("lines", ("POST", "/v1/files", ("lines.jsonl", _LINES))),
    ("file_card", ("GET", "/v1/files/{lines}", b"")),
    ("file_content", ("GET", "/v1/files/{lines}/content", b"")),
    ("files", ("GET", "/v1/files?limit=1", b"")),
    (
        "batch",
        (
            "POST",
            "/v1/batches",
            {"input_file_id": "{lines}", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        ),
    ),
    ("ended", ("GET", "/v1/batches/{batch}", b"")),
    ("results", ("GET", "/v1/files/{output_file}/content", b"")),
    ("batches", ("GET", "/v1/batches?limit=1", b"")),
    ("no_batch", ("POST", "/v1/batches/{batch}/cancel", {})),
    ("file_gone", ("DELETE", "/v1/files/{lines}", b"")),
    (
        "wrong_batch",
        (
            "POST",
            "/v1/batches",
            {"input_file_id": "file-nothing", "endpoint": "/nothing", "completion_window": "1h"},
        ),
    ),
    ("no_json", ("POST", "/v1/chat/completions", b"{")),
    ("no_body", ("POST", "/v1/chat/completions", b"")),
    ("no_method", ("PUT", "/v1/chat/completions", b"")),
    ("no_route", ("POST", "/v1/nothing", b"")),
]
_SEEN = [
    "/v1/models",
    "/v1/models/demo",
    "/v1/models/nothing",
    "/v1/model/info",
    "/api/tags",
    "/api/version",
    "/tokenizer_info?model=demo",
    "/v1/adapters",
    "/v1/mcp",
    "/v1/requests",
    "/v1/files/nothing",
    "/health",
    "/ready",
    "/v1/health",
    "/openapi.json",
]
