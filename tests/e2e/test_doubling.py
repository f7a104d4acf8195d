"""Small programs of clients that double what they make: none grows in the process that must not die."""

from __future__ import annotations

import gzip
import json

import psutil
import pytest

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GENERATE = "/api/generate"
DOUBLINGS = 40
MOST_GROWTH = 64 * 2**20
HI = [{"role": "user", "content": "hi"}]


def format_of(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def custom(syntax: str, definition: str) -> dict[str, object]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool = {"type": "custom", "name": "x", "format": form}
    return {"input": "hi", "tools": [tool], "tool_choice": "required"}


LARK = "start: A40\nA0: /a/\n" + "\n".join(f"A{n}: A{n - 1} A{n - 1}" for n in range(1, DOUBLINGS + 1))
GBNF = 'root ::= r40\nr0 ::= "a"\n' + "\n".join(
    f"r{n} ::= r{n - 1} r{n - 1}" for n in range(1, DOUBLINGS + 1)
)
REFERENCES = {"$defs": {"d0": {"const": "a"}}, "$ref": "#/$defs/d40"}
PAIR = {"type": "array", "minItems": 2, "items": False}
REFERENCES["$defs"] |= {  # type: ignore[operator]
    f"d{n}": {**PAIR, "prefixItems": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, DOUBLINGS + 1)
}
ALL_OF: object = {"properties": {"a": {"type": "string"}}}
for _ in range(12):
    ALL_OF = {"allOf": [ALL_OF, {"anyOf": [{"minLength": 1}, {"maxLength": 9}]}]}
REGEX = "(" * 20 + "a" + "{9}){9}" * 20

DOUBLED = "{{$x := print `aaaaaaaa`}}" + "{{$x = print $x $x}}" * DOUBLINGS + "{{.Prompt}}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": REFERENCES}}
PROGRAMS: dict[str, tuple[str, dict[str, object]]] = {
    "template of Ollama": (GENERATE, {"model": "tiny", "prompt": "hi", "template": DOUBLED}),
    "template that repeats": (
        GENERATE,
        {"model": "tiny", "prompt": "y" * 100_000, "template": "{{.Prompt}}" * 5900},
    ),
    "Lark": (RESPONSES, custom("lark", LARK)),
    "regular expression of a tool": (RESPONSES, custom("regex", REGEX)),
    "GBNF": (COMPLETIONS, {"prompt": "hi", "grammar": GBNF}),
    "regular expression": (COMPLETIONS, {"prompt": "hi", "structured_outputs": {"regex": REGEX}}),
    "references of a schema": (CHAT, {"messages": HI, "response_format": format_of(REFERENCES)}),
    "alternatives of a schema": (CHAT, {"messages": HI, "response_format": format_of(ALL_OF)}),
    "parameters of a tool": (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "required"}),
}


USES_ITS_SHARE = {"Lark", "regular expression of a tool", "GBNF", "regular expression"}
"""Programs that compute until they are refused, which takes about ten seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in USES_ITS_SHARE)) for name in PROGRAMS]
)
def test_a_program_that_doubles_does_not_grow_here(server: ServerProcess, name: str) -> None:
    path, body = PROGRAMS[name]
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    limit = {"max_output_tokens": 16} if path == RESPONSES else {"max_tokens": 4}
    body = {**body, **({"stream": False} if path.startswith("/api") else limit)}
    answers = [server.post(path, json=body) for _ in range(2)]
    assert {answer.status_code for answer in answers} <= {200, 400}, answers[0].text
    assert process.memory_info().rss - before < MOST_GROWTH
    assert server.get("/health").status_code == 200


def test_a_body_that_inflates_or_nests_is_refused(server: ServerProcess) -> None:
    """A few kilobytes would be 200 MB."""
    body = gzip.compress(json.dumps({"prompt": "a" * 200_000_000}).encode())
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    assert server.post(COMPLETIONS, content=body, headers=headers).status_code == 413
    nested = '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert server.post(CHAT, content=nested).status_code == 400
    assert process.memory_info().rss - before < MOST_GROWTH
