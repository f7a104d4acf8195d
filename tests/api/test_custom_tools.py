"""Custom tools, which take a text: every format enforces their grammar, and both APIs show them as custom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_cpu_server.api.generation.call import PartsReader
from openai_cpu_server.api.generation.params import MessageParam
from openai_cpu_server.api.responses.conversation import to_messages
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.api.responses.to_params import ignored_tools, new_items, to_params, unsupported_names
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, CallBegin, CallText, Content, WrittenCall
from tests.api.resolving import chat
from tests.api.test_tool_formats import PLAIN as FOLLOWER
from tests.api.test_tool_formats import accepts
from tests.structured.test_lark_reading import APPLY_PATCH, PATCH

Json = dict[str, Any]


def custom(name: str, definition: str = "", syntax: str = "lark") -> Json:
    form: Json = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "description": "Edits.", "format": form}}


PATCHES = custom("apply_patch", APPLY_PATCH)
PLAIN: Json = {"type": "custom", "custom": {"name": "note", "format": {"type": "text"}}}
FUNCTION = {"type": "function", "function": {"name": "now"}}
TOOLS = [PATCHES, PLAIN, FUNCTION]


def written(form: str, name: str, text: str) -> str:
    """A call without white space in its JSON, as the server's default grammar demands."""
    found = TOOL_FORMATS[form].written([WrittenCall(name, {"input": text})])
    if form == "command-r7b":
        return found.replace('"input": ', '"input":')
    for mark in ('"name": ', '"tool_name": ', '"arguments": ', '"parameters": ', '"input": '):
        found = found.replace(mark, mark.rstrip())
    return found.replace(', "arguments"', ',"arguments"').replace(', "parameters"', ',"parameters"')


def read(reader: PartsReader, pieces: list[str]) -> list[tuple[str, str]]:
    parts = [part for piece in pieces for part in reader.read_texts("", piece, has_ended=False)]
    found: list[tuple[str, str]] = []
    for part in [*parts, *reader.read_texts("", "")]:
        match part:
            case CallBegin(name, takes_text):
                found.append((name, "")) if takes_text else found.append((f"{name}()", ""))
            case CallText(text=text):
                found[-1] = (found[-1][0], found[-1][1] + text)
            case Content(text=text):
                raise AssertionError(text)
    return found


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_every_format_writes_and_reads_the_text_of_a_call(form: str) -> None:
    call = chat(form=form, tokenizer=FOLLOWER.tokenizer, tools=TOOLS, tool_choice="required")
    for name, text in (("apply_patch", PATCH), ("note", 'é "x"\t')):
        output = written(form, name, text)
        if form in ("pythonic", "lfm2", "minicpm5") and name == "apply_patch":
            plain = f"<![CDATA[{text}]]>" if form == "minicpm5" else repr(text)
            output = output.replace(plain, json.dumps(text, ensure_ascii=False))
        assert accepts(call, FOLLOWER, output), output
        for pieces in ([output], list(output)):
            assert read(call.reader(), pieces) == [(name, text)]
    wrong = written(form, "apply_patch", PATCH.replace("*** Update", "*** Rename"))
    assert not accepts(call, FOLLOWER, wrong)
    if end := TOOL_FORMATS[form].text_end:  # a raw text cannot contain its end mark
        marked = written(form, "apply_patch", PATCH.replace("def f", f"def f{end}"))
        assert not accepts(call, FOLLOWER, marked)


def test_a_cut_escape_waits_for_its_end() -> None:
    arguments = r'{ "input" : "a\ud83d\ude00\\\"\n\/é" }'
    call = chat(form="hermes", tools=[PLAIN])
    output = '<tool_call>\n{"name": "note", "arguments": ' + arguments + "}\n</tool_call>"
    for pieces in ([output], list(output)):
        assert read(call.reader(), pieces) == [("note", 'a😀\\"\n/é')]
    assert read(call.reader(), [output[: output.index("ude00")]]) == [("note", "a")]


def test_only_custom_tools_take_text_and_one_can_be_chosen() -> None:
    call = chat(form="hermes", tools=TOOLS)
    output = '<tool_call>\n{"name":"now","arguments":{}}\n</tool_call>\n' + written("hermes", "note", "x")
    assert read(call.reader(), [output]) == [("now()", ""), ("note", "x")]
    call = chat(form="hermes", tools=TOOLS, tool_choice={"type": "custom", "custom": {"name": "note"}})
    assert not accepts(call, FOLLOWER, written("hermes", "apply_patch", PATCH))


# -- Responses -----------------------------------------------------------------------------------------------

SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}
RESPONSES_TOOLS: list[Json] = [
    {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH},
    },
    {
        "type": "namespace",
        "name": "agents",
        "description": "Tools for agents.",
        "tools": [SPAWN, {"type": "custom", "name": "tell"}, {"type": "web_search"}],
    },
    {"type": "local_shell"},
]


def body(**fields: object) -> ResponsesBody:
    return ResponsesBody.model_validate({"input": "hi", "tools": RESPONSES_TOOLS, **fields})


def names(request: ResponsesBody) -> list[str]:
    tools = to_params(request, to_messages(new_items(request.input, {}))).tools
    assert tools is not None
    return [each.name for each in tools.functions if tools.chosen is None or each.name in tools.chosen]


def test_responses_support_custom_tools_and_namespaces() -> None:
    assert names(body()) == ["apply_patch", "agents.spawn", "agents.tell"]
    assert ignored_tools(body()) == ["tools[1].tools[2] (web_search)", "tools[2] (local_shell)"]
    spaces = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "agents"}]}
    for choice, chosen in (
        ({"type": "function", "name": "spawn"}, ["agents.spawn"]),
        ({"type": "custom", "name": "tell", "namespace": "agents"}, ["agents.tell"]),
        ({"type": "custom", "name": "apply_patch"}, ["apply_patch"]),
        (spaces, ["agents.spawn", "agents.tell"]),
    ):
        assert names(body(tool_choice=choice)) == chosen


def test_an_earlier_custom_call_is_shown_as_the_model_wrote_it() -> None:
    request = body(
        input=[
            {"role": "user", "content": "edit"},
            {"type": "custom_tool_call", "call_id": "c", "name": "tell", "namespace": "agents", "input": "ö"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"},
        ]
    )
    shown = [message.fields for message in to_messages(new_items(request.input, {}))]
    function = {"name": "agents.tell", "arguments": '{"input": "ö"}'}
    assert shown[1]["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    assert shown[2] == {"role": "tool", "content": "Done", "tool_call_id": "c"}


COMPACTED = {"type": "compaction", "encrypted_content": "openai-cpu-server:We wrote a.py."}


def test_our_summaries_are_shown_and_other_servers_are_left_out() -> None:
    other = {"type": "compaction", "encrypted_content": "gAAA"}
    request = body(input=[COMPACTED, other, {"role": "user", "content": "go on"}])
    shown = [message.text for message in to_messages(new_items(request.input, {}))]
    assert shown == ["This is a summary of the conversation so far:\nWe wrote a.py.", "go on"]
    assert unsupported_names(request.input) == ["input[1] (compaction)"]
    summing = to_params(
        body(input=[COMPACTED, {"type": "compaction_trigger"}]), [MessageParam({"role": "user"})]
    )
    assert summing.tools is not None
    assert (summing.tools.use, summing.tools.is_shown) == (None, True)
