"""Anthropic's conversations, told as chat's."""

from __future__ import annotations

import json

import pytest

from openai_cpu_server.api.resolve.messages import checked_messages
from openai_cpu_server.api.resolve.told_messages import ToldBody
from openai_cpu_server.api.routes.anthropic import MessagesCounting, MessagesFamily
from openai_cpu_server.api.schemas.tools import NamedTool
from openai_cpu_server.errors import InvalidRequest

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


def read(**fields: object) -> ToldBody:
    body = {"max_tokens": 9, "messages": [HI], **fields}
    return MessagesFamily().read(json.dumps(body).encode(), lenient=False)[0]


def ignored(**fields: object) -> str | None:
    body = {"max_tokens": 9, "messages": [HI], **fields}
    names = MessagesFamily().read(json.dumps(body).encode(), lenient=False)[1]
    return names.headers.get("x-ignored-parameters")


def told(*messages: object, **fields: object) -> list[Json]:
    return checked_messages(read(messages=list(messages), **fields).messages)


def refused(**fields: object) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    return str(caught.value), caught.value.param


def test_system_text_stands_first() -> None:
    expected = [{"role": "system", "content": "a\nb"}, HI]
    assert told(HI, system="a\nb") == expected
    assert told(HI, system=[text("a", cache_control={"type": "ephemeral"}), text("b")]) == expected
    assert told({"role": "system", "content": "b"}, HI, system="a") == expected
    assert told(HI, system="") == told(HI, system=[]) == [HI]


def test_the_billing_line_of_claude_code_is_dropped() -> None:
    expected = [{"role": "system", "content": "You help."}, HI]
    assert told(HI, system=[text(BILLING), text("You help.")]) == expected
    assert told(HI, system=f"{BILLING}\nYou help.") == expected
    assert told(HI, system=BILLING) == [HI]


def test_a_billing_line_elsewhere_is_somebodys_text() -> None:
    assert told(HI, system=[text("You help."), text(BILLING)])[0]["content"] == f"You help.\n{BILLING}"
    assert told({"role": "user", "content": BILLING}) == [{"role": "user", "content": BILLING}]


def test_successive_messages_of_one_role_are_one() -> None:
    messages = (HI, user(text("there")), assistant(text("yes")), {"role": "assistant", "content": "?"})
    assert told(*messages) == [
        {"role": "user", "content": "hi\nthere"},
        {"role": "assistant", "content": "yes\n?"},
    ]


def test_calls_and_their_results() -> None:
    calling = assistant(text("Let me see."), use(1, city="Rome"), use(2))
    answers = user(text("And now?"), result(1, "sunny"), result(2, [text("warm"), text("dry")]), result(3))
    first, second, *rest = told(HI, calling, answers)[1:]
    assert first == {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {
                "id": "toolu_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            },
            {"id": "toolu_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        ],
    }
    assert second == {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}
    assert rest == [
        {"role": "tool", "tool_call_id": "toolu_2", "content": "warm\ndry"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "user", "content": "And now?"},
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
    *_, message, _ = read(messages=[HI, assistant(thought, hidden, text("yes")), HI]).messages
    assert (message.content, message.reasoning_content) == ("yes", "Hm.")
    assert told(HI, assistant(hidden), HI)[1]["content"] == ""


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([user(IMAGE)], "messages[0].content[0]"),
        ([user(text("a"), {"type": "document", "source": {}})], "messages[0].content[1]"),
        ([user(result(1, [IMAGE]))], "messages[0].content[0].content[0]"),
    ],
)
def test_what_is_no_text_is_refused(messages: object, at: str) -> None:
    message, param = refused(messages=messages)
    assert param == at
    assert "text only" in message


@pytest.mark.parametrize(
    "wrong",
    [user(use(1)), assistant(result(1)), user({"type": "thinking", "thinking": "a"})],
)
def test_blocks_of_the_other_role_are_refused(wrong: object) -> None:
    assert refused(messages=[HI, wrong])[1] == "messages[1].content[0]"


def test_what_is_alike_has_other_names() -> None:
    body = read(
        model="m",
        stream=True,
        stop_sequences=["a", "b"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        metadata={"user_id": "ann"},
        service_tier="standard_only",
    )
    assert (body.model, body.max_tokens, body.stream, body.stop) == ("m", 9, True, ["a", "b"])
    assert (body.temperature, body.top_p, body.top_k, body.user) == (0.5, 0.9, 40, "ann")
    assert body.service_tier is None


def test_tools_and_choices() -> None:
    body = read(tools=[SEARCH, {**WEATHER, "type": "custom", "strict": True}])
    assert body.tools is not None
    (tool,) = body.tools
    assert (tool.function.name, tool.function.parameters, tool.function.strict) == ("weather", SCHEMA, True)
    chosen = {kind: read(tools=[WEATHER], tool_choice={"type": kind}).tool_choice for kind in ("auto", "any")}
    assert chosen == {"auto": "auto", "any": "required"}
    assert read(tools=[WEATHER], tool_choice={"type": "none"}).tool_choice == "none"
    named = read(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}).tool_choice
    assert isinstance(named, NamedTool)
    assert named.function.name == "weather"
    alone = {"type": "auto", "disable_parallel_tool_use": True}
    assert read(tools=[WEATHER], tool_choice=alone).parallel_tool_calls is False


def test_tools_that_only_anthropic_has_are_named() -> None:
    assert ignored(tools=[WEATHER, SEARCH]) == "tools[1] (web_search_20250305)"
    assert read(tools=[SEARCH], tool_choice={"type": "auto"}).tools is None


def test_a_name_may_be_long() -> None:
    assert read(tools=[{**WEATHER, "name": "m" * 128}]).tools is not None
    assert refused(tools=[{**WEATHER, "name": "m" * 129}])[1] == "tools[0].name"


def test_services_that_are_not_here_are_named() -> None:
    assert ignored(context_management={"edits": []}, speed="fast") == "context_management,speed"
    assert ignored(cache_control={"type": "ephemeral"}, messages=[user(text("a", cache_control={}))]) is None
    assert ignored(messages=[user(text("a", colour="red"))]) == "messages[].content[].colour"


def test_the_header_is_no_longer_than_it_must_be() -> None:
    names = ignored(tools=[SEARCH] * 500)
    assert names is not None
    assert names.count(",") == 31


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"colour": "red"}, "colour"),
        ({"messages": []}, "messages"),
        ({"messages": [user()]}, "messages[0].content"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ],
)
def test_wrong_bodies(wrong: Json, param: str) -> None:
    assert refused(**wrong)[1] == param


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_the_form_of_the_answer(field: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    wish = read(**{field: form if field == "output_format" else {"format": form}}).response_format
    assert wish is not None
    assert wish.json_schema is not None
    assert wish.json_schema.json_schema == SCHEMA


def test_a_form_cannot_begin_in_the_middle() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    message, param = refused(messages=[HI, assistant(text("{"))], output_config={"format": form})
    assert param == "messages"
    assert "output_config.format" in message


def test_who_only_counts_names_no_limit() -> None:
    data = json.dumps({"messages": [HI], "system": "a", "tools": [WEATHER]}).encode()
    body, _ = MessagesCounting().read(data, lenient=False)
    assert [message.role for message in body.messages] == ["system", "user"]
    assert body.tools is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"enable_thinking": True, "thinking_budget": 1024},
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"reasoning_effort": "xhigh"},
        ),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {"include_reasoning": False}),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, {}),
        ({}, {}),
    ],
)
def test_how_long_to_think(fields: Json, said: Json) -> None:
    told = read(**fields).model_dump(exclude_none=True)
    names = ("enable_thinking", "thinking_budget", "reasoning_effort", "include_reasoning")
    assert {name: told[name] for name in names if name in told} == said
