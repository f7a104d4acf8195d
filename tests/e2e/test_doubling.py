"""Small inputs of clients that expand exponentially: none grows the API process."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fuzz.pictures import bomb
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GENERATE = "/api/generate"
DOUBLINGS = 40
NESTED = "[" * 100_000 + "]" * 100_000
MAX_GROWTH_BYTES = 64 * 2**20
HI = [{"role": "user", "content": "hi"}]


def format_of(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


REFERENCES = {"$defs": {"d0": {"const": "a"}}, "$ref": "#/$defs/d40"}
PAIR = {"type": "array", "minItems": 2, "items": False}
REFERENCES["$defs"] |= {  # type: ignore[operator]
    f"d{n}": {**PAIR, "prefixItems": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, DOUBLINGS + 1)
}
ALL_OF: object = {"properties": {"a": {"type": "string"}}}
for _ in range(12):
    ALL_OF = {"allOf": [ALL_OF, {"anyOf": [{"minLength": 1}, {"maxLength": 9}]}]}
DOUBLED = "{{$x := print `aaaaaaaa`}}" + "{{$x = print $x $x}}" * DOUBLINGS + "{{.Prompt}}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": REFERENCES}}
TERMINALS = "\n".join(f"A{n}: A{n - 1} A{n - 1}" for n in range(1, DOUBLINGS + 1))
SYNTAX = {"syntax": "lark", "definition": f"start: A{DOUBLINGS}\nA0: /a/\n{TERMINALS}"}
CUSTOM = {"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": SYNTAX}}}
ENTITIES = "".join(f"<!ENTITY e{n} '&e{n - 1};&e{n - 1};'>" for n in range(1, DOUBLINGS + 1))
SVG = f"<!DOCTYPE svg [<!ENTITY e0 'a'>{ENTITIES}]><svg xmlns='http://www.w3.org/2000/svg'><text>&e40;</text></svg>"
POINTER = "#/properties/a" + "/items/properties/a" * DOUBLINGS
POINTERS = {"type": "object", "properties": {"a": {"items": {"properties": {"a": {"$ref": POINTER}}}}}}
REGEX = "(" * DOUBLINGS + "a" + "){2}" * DOUBLINGS
GBNF = 'root ::= r40\nr0 ::= "a"\n' + "\n".join(
    f"r{n} ::= r{n - 1} r{n - 1}" for n in range(1, DOUBLINGS + 1)
)


def with_file(name: str, text: str, parameters: str = "") -> list[object]:
    data = f"data:text/plain{parameters};base64," + base64.b64encode(text.encode()).decode()
    content = [
        {"type": "file", "file": {"filename": name, "file_data": data}},
        {"type": "text", "text": "hi"},
    ]
    return [{"role": "user", "content": content}]


PROGRAMS: dict[str, tuple[str, dict[str, object]]] = {
    "template of Ollama": (GENERATE, {"model": "tiny", "prompt": "hi", "template": DOUBLED}),
    "template that repeats": (
        GENERATE,
        {"model": "tiny", "prompt": "y" * 100_000, "template": "{{.Prompt}}" * 5900},
    ),
    "references of a schema": (CHAT, {"messages": HI, "response_format": format_of(REFERENCES)}),
    "alternatives of a schema": (CHAT, {"messages": HI, "response_format": format_of(ALL_OF)}),
    "terminals of Lark": (CHAT, {"messages": HI, "tools": [CUSTOM], "tool_choice": "required"}),
    "entities of a picture": (CHAT, {"messages": with_file("a.svg", SVG)}),
    "entities of a page": (CHAT, {"messages": with_file("a.xhtml", SVG)}),
    "repetitions of a regular expression": (CHAT, {"messages": HI, "guided_regex": REGEX}),
    "rules of GBNF": (CHAT, {"messages": HI, "guided_grammar": GBNF}),
    "pointers of a schema": (CHAT, {"messages": HI, "response_format": format_of(POINTERS)}),
    "parameters of a URL with data": (CHAT, {"messages": with_file("a.txt", "a", ";charset=a" * 100_000)}),
    "parameters of a tool": (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "required"}),
}


@contextmanager
def no_growth(server: ServerProcess) -> Iterator[None]:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    yield
    assert process.memory_info().rss - before < MAX_GROWTH_BYTES
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_doubles_does_not_grow_the_server(server: ServerProcess, name: str) -> None:
    path, body = PROGRAMS[name]
    body = {**body, **({"stream": False} if path.startswith("/api") else {"max_tokens": 4})}
    with no_growth(server):
        answers = [server.post(path, json=body) for _ in range(2)]
    assert {answer.status_code for answer in answers} <= {200, 400}, answers[0].text


def test_a_body_that_inflates_or_nests_is_refused(server: ServerProcess) -> None:
    """The body inflates from a few kilobytes to 200 MB."""
    body = gzip.compress(json.dumps({"prompt": "a" * 200_000_000}).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    with no_growth(server):
        assert server.post(COMPLETIONS, content=body, headers=headers).status_code == 413
        assert server.post(CHAT, content=f'{{"messages":{NESTED}}}').status_code == 400


FORMS = {
    "names that nest": [("model" + "[a]" * n, "a") for n in range(1, DOUBLINGS)],
    "one name": [(f"response_format[{n}]", "a") for n in range(DOUBLINGS)],
    "more fields than it has": [(f"k{n}", "a") for n in range(10_000)],
    "lists": [("include[]", "[" * 10_000 + "]" * 10_000)] * DOUBLINGS,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_nests_or_repeats_is_refused(server: ServerProcess, name: str) -> None:
    fields = [(field, (None, text)) for field, text in FORMS[name]]
    files = [*fields, ("file", ("a.wav", b"RIFF"))]
    with no_growth(server):
        answers = [server.post("/v1/audio/transcriptions", files=files) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [400, 400], answers[0].text


TOOLS = """
import json, sys

answers = json.load(open(sys.argv[1]))
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        unknown = {"error": {"code": -32601, "message": "unknown"}}
        answer = answers.get(message["method"], unknown)
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def test_mcp_tools_that_double_do_not_grow_the_server(tmp_path: Path) -> None:
    """The parameters of one tool are a schema that doubles. The result of the other is a picture of a few
    kilobytes that decodes to 400 MB."""
    picture = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(bomb()).decode()}
    doubling = {"properties": {"a": {"$ref": "#/$defs/d40"}}, "$defs": REFERENCES["$defs"]}
    specs = [
        {"name": name, "inputSchema": {"type": "object", "additionalProperties": False, **schema}}
        for name, schema in {"doubles": doubling, "shows": {}}.items()
    ]
    handshake = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    handshake |= {"serverInfo": {"name": "raw", "version": "1"}}
    results = {"initialize": handshake, "tools/list": {"tools": specs}, "tools/call": {"content": [picture]}}
    script, answers, config = (tmp_path / name for name in ("tools.py", "answers.json", "config.toml"))
    script.write_text(TOOLS)
    answers.write_text(json.dumps({method: {"result": result} for method, result in results.items()}))
    config.write_text(f'[mcp.raw]\ncommand = "{sys.executable}"\nargs = ["{script}", "{answers}"]\n')
    with ServerProcess("--model", "demo", "--config", str(config)) as server:
        server.post(CHAT, json={"messages": HI, "max_tokens": 1})
        tool = {"type": "mcp", "server_label": "raw"}
        with no_growth(server):
            for name in ("doubles", "shows"):
                tools = [{**tool, "require_approval": "never", "allowed_tools": [name]}]
                body = {"input": "hi", "tools": tools, "tool_choice": {**tool, "name": name}}
                answer = server.post("/v1/responses", json={**body, "max_output_tokens": 60})
                assert answer.status_code == 200, answer.text
        assert any(item["type"] == "mcp_call" for item in answer.json()["output"])


AMBIGUOUS = "root ::= s\ns ::= [a-z] s [a-z] s | [a-z] s | [a-z]"


def test_a_grammar_that_becomes_too_ambiguous_is_refused_at_once_the_next_time(
    server: ServerProcess,
) -> None:
    body = {"prompt": "hi", "grammar": AMBIGUOUS, "n_predict": 2000, "temperature": 0}
    first = server.post("/completion", json=body)
    assert first.status_code == 400, first.text
    assert first.json()["error"]["param"] == "grammar"
    num_computed = server.get("/metrics").text.partition("ocs_step_tokens_sum")[2].splitlines()[0]
    assert server.post("/completion", json=body).json() == first.json()
    assert f"ocs_step_tokens_sum{num_computed}\n" in server.get("/metrics").text
    assert server.post("/completion", json={**body, "n_predict": 4}).status_code == 200


PARTS = {
    "nested": f'"prompt":{NESTED}',
    "huge number": '"prompt":"a","seed":1e999999',
    "long number": '"prompt":"a","seed":' + "9" * 500_000,
    "keys": '"prompt":"a",' + ",".join(f'"k{n}":{n}' for n in range(200_000)),
    "escapes": '"prompt":"' + "\\u0000" * 200_000 + '"',
}


@pytest.mark.parametrize("name", PARTS)
def test_a_row_that_nests_or_is_huge_fails_alone(server: ServerProcess, name: str) -> None:
    head = '"method":"POST","url":"/v1/completions","body":{"max_tokens":2,'
    parts = {"bad": PARTS[name], "good": '"prompt":"a"'}
    rows = "".join(f'{{"custom_id":"{custom_id}",{head}{part}}}}}\n' for custom_id, part in parts.items())
    upload = {"file": ("rows.jsonl", rows.encode())}
    window = {"endpoint": "/v1/completions", "completion_window": "24h"}
    with no_growth(server):
        file = server.post("/v1/files", files=upload, data={"purpose": "batch"})
        assert file.status_code == 200, file.text
        batch = server.post("/v1/batches", json={"input_file_id": file.json()["id"], **window})
        if batch.status_code == 200:
            path = f"/v1/batches/{batch.json()['id']}"
            wait_until(lambda: server.get(path).json()["status"] in ("failed", "completed"))
            state = server.get(path).json()
            assert state["status"] == "failed" or state["request_counts"]["completed"] == 1, state
        else:
            assert batch.status_code == 400, batch.text
