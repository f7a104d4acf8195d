"""Anthropic's conversations become what all families ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_cpu_server.api.generation.attachments import without_unsupported
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    GenerationParams,
    LimitParam,
    ReasoningParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.api.messages.routes import COUNTED as COUNTED_MESSAGES
from openai_cpu_server.api.messages.routes import MESSAGES_API as MESSAGES
from tests.prompt.test_conversation import short

Json = dict[str, object]
HI: Json = {"role": "user", "content": "hi"}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Json = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
SEARCH: Json = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"


def text(words: str, **fields: object) -> Json:
    return {"type": "text", "text": words, **fields}


def use(number: int, **arguments: object) -> Json:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": arguments}


def result(number: int, content: object = None, **fields: object) -> Json:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **fields}


def user(*blocks: object) -> Json:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: object) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def read(**fields: object) -> GenerationParams:
    """As it is for a model without eyes."""
    body = {"max_tokens": 9, "messages": [HI], **fields}
    return without_unsupported(MESSAGES.read(json.dumps(body).encode(), lenient=False))


def ignored(**fields: object) -> str | None:
    return read(**fields).ignored.headers.get("x-ignored-parameters")


def messages_of(ask: GenerationParams) -> list[Json]:
    assert isinstance(ask.prompt, ConversationParam)
    return [dict(message.fields) for message in ask.prompt.messages]


def told(*messages: object, **fields: object) -> list[Json]:
    return messages_of(read(messages=list(messages), **fields))


def tools_of(**fields: object) -> ToolsParam:
    tools = read(**fields).tools
    assert tools is not None
    return tools


@pytest.mark.parametrize(
    ("system", "left"),
    [
        ("a\nb", "a\nb"),
        ([text("a", cache_control={"type": "ephemeral"}), text("b")], "a\nb"),
        ("", None),
        ([], None),
        ([text(BILLING), text("You help.")], "You help."),
        (f"{BILLING}\nYou help.", "You help."),
        (BILLING, None),
        ([text("You help."), text(BILLING)], f"You help.\n{BILLING}"),
    ],
)
def test_system_text_stands_first(system: object, left: object) -> None:
    """The billing line of Claude Code is dropped where it stands first there."""
    assert told(HI, system=system) == [*([{"role": "system", "content": left}] if left else []), HI]
    assert short(told({"role": "system", "content": "b"}, HI, system="a")) == ["S a\nb", "U hi"]
    assert told({"role": "user", "content": BILLING}) == [{"role": "user", "content": BILLING}]


def test_successive_messages_of_one_role_are_one() -> None:
    messages = (HI, user(text("there")), assistant(text("yes")), {"role": "assistant", "content": "?"})
    assert short(told(*messages)) == ["U hi\nthere", "A yes\n?"]


def test_calls_and_their_results() -> None:
    calling = assistant(text("Let me see."), use(1, city="Rome"), use(2))
    answers = user(text("And now?"), result(1, "sunny"), result(2, [text("warm"), text("dry")]), result(3))
    messages = told(HI, calling, answers)
    assert short(messages) == [
        *("U hi", "calls toolu_1 toolu_2 Let me see."),
        *(".toolu_1 = sunny", ".toolu_2 = warm\ndry", ".toolu_3 =", "U And now?"),
    ]
    calls: Any = messages[1]["tool_calls"]
    assert [(call["type"], call["function"]) for call in calls] == [
        ("function", {"name": "weather", "arguments": '{"city": "Rome"}'}),
        ("function", {"name": "weather", "arguments": "{}"}),
    ]


@pytest.mark.parametrize(
    ("content", "read_as"),
    [("no such city", "Error: no such city"), (None, "Error: "), ("<tool_use_error>x", "<tool_use_error>x")],
)
def test_a_result_that_is_an_error_says_so(content: str | None, read_as: str) -> None:
    assert told(HI, assistant(use(1)), user(result(1, content, is_error=True)))[-1]["content"] == read_as


def test_what_was_thought_is_no_text() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    *_, message, _ = told(HI, assistant(thought, hidden, text("yes")), HI)
    assert (message["content"], message["reasoning_content"]) == ("yes", "Hm.")
    for ours in (assistant(hidden), assistant()):
        assert told(HI, ours, HI)[1] == {"role": "assistant", "content": ""}


BLIND = "[this model has no vision and cannot see images]"
CITED = {"type": "search_result", "title": "T", "source": "http://x", "content": [text("found")]}
READ = {"type": "document", "title": "D", "context": "C", "source": {"type": "text", "data": "read"}}
QUOTED = {"type": "document", "title": "D", "source": {"type": "content", "content": [text("read")]}}
SERVED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "ö"}}
HITS = {
    "type": "web_search_tool_result",
    "tool_use_id": "s",
    "content": [{"type": "web_search_result", "title": "Hit", "url": "http://y", "encrypted_content": "zz"}],
}


@pytest.mark.parametrize(
    ("messages", "words", "named"),
    [
        ([user(IMAGE)], [BLIND], "messages[0].content[0] (image)"),
        ([user(text("a"), READ)], ["a\nD\nC\nread"], None),
        ([user(text("a"), QUOTED)], ["a\nD\nread"], "messages[0].content[1] (document)"),
        ([user(text("a"), CITED)], ["a\nT\nfound"], "messages[0].content[1] (search_result)"),
        ([HI, assistant(use(1)), user(result(1, [IMAGE, text("b")]))],
         ["hi", None, f"{BLIND}\nb"], "messages[2].content[0].content[0] (image)"),
        ([HI, assistant(SERVED, HITS, text("so")), HI],
         ["hi", 'web_search: {"query": "ö"}\nHit\nhttp://y\nso', "hi"],
         "messages[1].content[0] (server_tool_use),messages[1].content[1] (web_search_tool_result)"),
        ([user(result(7, "gone"))], ["gone"], "messages[0].content[0] (result without a call)"),
    ],
)  # fmt: skip
def test_other_blocks_become_words(messages: list[Json], words: list[str | None], named: str | None) -> None:
    assert [message["content"] for message in told(*messages)] == words
    assert ignored(messages=messages) == named


def test_what_is_alike_has_other_names() -> None:
    ask = read(
        model="m",
        stream=True,
        stop_sequences=["a", "b"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        metadata={"user_id": "ann"},
        service_tier="standard_only",
    )
    assert (ask.model, ask.stream, ask.stop) == ("m", True, ("a", "b"))
    assert ask.max_tokens == LimitParam(9, "max_tokens", is_ceiling=True)
    sampling = ask.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, ask.user) == (0.5, 0.9, 40, "ann")
    assert ask.service_tier is None


def test_tools_and_choices() -> None:
    weather = {**WEATHER, "name": "w" * 128, "type": "custom", "strict": True}
    (tool,) = tools_of(tools=[SEARCH, weather]).functions
    assert (tool.name, tool.parameters, tool.is_strict) == ("w" * 128, SCHEMA, True)
    assert (tool.path, tool.schema_path) == ("tools[1]", "tools[1].input_schema")
    chosen = {kind: tools_of(tools=[WEATHER], tool_choice={"type": kind}).use for kind in ("auto", "any")}
    assert chosen == {"auto": ToolUse.AUTO, "any": ToolUse.REQUIRED}
    assert tools_of(tools=[WEATHER], tool_choice={"type": "none"}).use is None
    named = tools_of(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    assert (named.use, named.chosen) == (ToolUse.NAMED, ("weather",))
    alone = {"type": "auto", "disable_parallel_tool_use": True}
    assert not tools_of(tools=[WEATHER], tool_choice=alone).several


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [WEATHER, SEARCH]}, "tools[1] (web_search_20250305)"),
        ({"context_management": {"edits": []}, "speed": "fast"}, "context_management,speed"),
        ({"cache_control": {"type": "ephemeral"}, "messages": [user(text("a", cache_control={}))]}, None),
        ({"messages": [user(text("a", colour="red"))]}, "messages[].content[].colour"),
    ],
)
def test_services_and_tools_that_are_not_here_are_named(fields: Json, named: str | None) -> None:
    assert ignored(**fields) == named


def test_the_header_is_no_longer_than_it_must_be() -> None:
    names = ignored(tools=[SEARCH] * 500)
    assert names is not None
    assert (names.count(","), names.endswith(",...")) == (32, True)
    assert read(tools=[SEARCH], tool_choice={"type": "auto"}).tools is None


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_the_form_of_the_answer(field: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    asked = read(**{field: form if field == "output_format" else {"format": form}}).form
    assert asked is not None
    at = field if field == "output_format" else "output_config.format"
    assert (asked.path, asked.field) == (f"{at}.schema", at)


def test_who_only_counts_names_no_limit() -> None:
    data = json.dumps({"messages": [HI], "system": "a", "tools": [WEATHER]}).encode()
    ask = COUNTED_MESSAGES.read(data, lenient=False)
    assert [message["role"] for message in messages_of(ask)] == ["system", "user"]
    assert ask.tools is not None


EFFORT = ("output_config.effort",)
BUDGET = ReasoningParam(is_on=True, budget=1024, paths=("thinking.budget_tokens",))


@pytest.mark.parametrize(
    ("thinking", "effort", "said"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, None, BUDGET),
        ({"type": "adaptive"}, "max", ReasoningParam(is_on=True, effort="xhigh", paths=EFFORT)),
        ({"type": "disabled"}, "low", ReasoningParam(is_on=False)),
        (None, "low", ReasoningParam(is_on=True, effort="low", paths=EFFORT)),
        ({"type": "adaptive", "display": "omitted"}, None, ReasoningParam(is_hidden=True)),
        ({"type": "adaptive", "display": "summarized"}, None, ReasoningParam()),
        (None, None, ReasoningParam()),
    ],
)
def test_how_long_to_think(thinking: Json | None, effort: str | None, said: ReasoningParam) -> None:
    fields = {"thinking": thinking, "output_config": effort and {"effort": effort}}
    assert read(**{name: value for name, value in fields.items() if value}).thinking == said
