"""Conversations of any form in every template: results beside their calls, system messages and turns at any
place, and earlier answers of the server."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from openai_cpu_server.prompt.chat_prompts import ChatPrompts, ControlNames, Conversation
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.conversation import adapted, with_bound_results
from openai_cpu_server.prompt.reasoning import template_reasoning
from openai_cpu_server.prompt.template import CallShape, SystemPlace, TemplateMessage, TemplateShape
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, format_for
from tests.api.fake_tokenizer import FakeTokenizer
from tests.prompt.test_reasoning_templates import FOLDER, template

HERMES, MISTRAL, GENERIC = (TOOL_FORMATS[name] for name in ("hermes", "mistral", "generic"))
FUNCTION = {"name": "f", "description": "does it", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
USER: TemplateMessage = {"role": "user", "content": "hi"}
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
VARIABLES = {"functions": json.dumps([FUNCTION]), "datetime": "noon"}
"""Variables that the template of Firefunction requires."""


def message(role: str, content: object, **fields: object) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call_message(
    *ids: str, content: str | None = None, arguments: object = '{"a": 1}', name: str = "f"
) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": name, "arguments": arguments}} for i in ids]
    return message("assistant", content, tool_calls=calls)


def result(of: str, text: str) -> dict[str, Any]:
    return message("tool", text, tool_call_id=of)


def short(messages: Sequence[TemplateMessage]) -> list[str]:
    """Summarise messages: thoughts in brackets, initials of roles or ids of calls and results, texts."""
    found = []
    for message in messages:
        label = str(message["role"])[0].upper()
        if message["role"] == "tool":
            label = f"{message.get('name', '')}.{message['tool_call_id']} ="
        elif calls := message.get("tool_calls"):
            label = " ".join(["calls", *(call["id"] for call in calls)])  # type: ignore[attr-defined]
        thoughts = f"({message['reasoning_content']}) " if "reasoning_content" in message else ""
        found.append(f"{thoughts}{label} {message['content'] or ''}".replace("\n\n", "|").rstrip())
    return found


@functools.cache
def prompts(name: str) -> ChatPrompts:
    found, tokenizer = template(name), FakeTokenizer()
    names = ControlNames(tokenizer.control_tokens)
    return ChatPrompts(found, tokenizer, format_for(found), names, template_reasoning(found))


def rendered(
    name: str,
    messages: Sequence[TemplateMessage],
    tools: Sequence[TemplateMessage] = TOOLS,
    variables: Any = VARIABLES,
) -> str:
    conversation = Conversation(messages=messages, tools=tools, variables=variables, finds_boundaries=False)
    return FakeTokenizer().decode(prompts(name).prompt(conversation).tokens, special=True)


LATER = message("user", "and?")
SAME = [result("c", "same")] * 3
BOUND: dict[str, tuple[list[TemplateMessage], list[str]]] = {
    "behind their calls, in the calls' order": (
        [USER, call_message("x", "y"), result("y", "2"), LATER, result("x", "1")],
        ["U hi", "calls x y", "f.x = 1", "f.y = 2", "U and?"]),
    "equal ids and results are each taken once": (
        [call_message("c", "c", "c"), *SAME],
        ["calls c c-2 c-3", "f.c = same", "f.c-2 = same", "f.c-3 = same"]),
    "an id that repeats means the latest call": (
        [call_message("c"), call_message("c"), result("c", "2"), USER, call_message("c"), result("c", "3")],
        ["calls c", "calls c-2", "f.c-2 = 2", "U hi", "calls c-3", "f.c-3 = 3"]),
    "a result without an id is the next call's": (
        [call_message("x", "y"), result("", "1"), result("y", "2")], ["calls x y", "f.x = 1", "f.y = 2"]),
    "a call without a result beside others says so": (
        [call_message("x", "y"), result("y", "2")], ["calls x y", "f.x = There is no result.", "f.y = 2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUND)
def test_results_are_bound_to_calls(name: str) -> None:
    messages, expected = BOUND[name]
    assert short([placed.message for placed in with_bound_results(messages)]) == expected


def test_a_result_without_an_open_call_becomes_text() -> None:
    placed = with_bound_results([result("gone", "1"), call_message("x"), result("x", "2"), result("x", "3")])
    assert [each.place for each in placed] == [0, 1, 2, 3]
    assert [each.is_stray for each in placed] == [True, False, False, True]
    assert placed[0].message == message("user", "Results of the functions:\n1")


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def adapt(
    *messages: TemplateMessage, form: Any = HERMES, shows_thoughts: bool = False, **shape: object
) -> list[TemplateMessage]:
    template_shape = TemplateShape(**{"calls": CallShape(), **shape})  # type: ignore[arg-type]
    return adapted(messages, (), template_shape, form, shows_thoughts=shows_thoughts)[0]


ALTERNATING = [
    *(message("assistant", "a"), USER, USER, message("assistant", "b"), message("assistant", "c"), USER),
]
LOOK = {**call_message("x", "y", content="Look:"), "reasoning_content": "Hm."}
ONE, TWO = result("x", "1"), result("y", "2")
STEPS = [USER, call_message("x"), ONE, call_message("y"), TWO, LATER]
EMPTY = [USER, message("assistant", ""), USER, message("assistant", "", reasoning_content="Hm."), USER]
ADAPTED: dict[str, tuple[list[TemplateMessage], dict[str, object], list[str]]] = {
    "turns that must alternate do": (
        ALTERNATING, {"alternates": True}, ["U ...", "A a", "U hi|hi", "A b|c", "U hi"]),
    "a question behind results makes words of them where turns alternate": (
        STEPS, {"alternates": True},
        ["U hi", "calls x", ".x = 1", f"A {CALL}", "U Results of the functions:\n2|and?"]),
    "or stays": (STEPS, {}, ["U hi", "calls x", ".x = 1", "calls y", ".y = 2", "U and?"]),
    "empty answers stay": (EMPTY, {}, ["U hi", "A", "U hi", "(Hm.) A", "U hi"]),
    "or are left out where they are refused": (EMPTY, {"takes_empty": False}, ["U hi", "U hi", "U hi"]),
    "but for thoughts that are shown": (
        EMPTY, {"takes_empty": False, "shows_thoughts": True}, ["U hi", "U hi", "(Hm.) A", "U hi"]),
    "text beside calls that is not shown becomes an answer before them": (
        [LOOK, ONE, TWO], {"calls": CallShape(text_apart=True)},
        ["(Hm.) A Look:", "calls x y", ".x = 1", ".y = 2"]),
    "a template that takes one call a message gets each with its result": (
        [LOOK, ONE, TWO], {"calls": CallShape(one_by_one=True)},
        ["(Hm.) calls x Look:", ".x = 1", "calls y", ".y = 2"]),
    "calls in words keep the thoughts": (
        [LOOK, ONE, TWO], {"calls": None},
        [f"(Hm.) A Look:\n{CALL}\n{CALL}", "U Results of the functions:\n1\n2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ADAPTED)
def test_messages_as_a_template_takes_them(name: str) -> None:
    messages, shape, expected = ADAPTED[name]
    assert short(adapt(*messages, **shape)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "first", "later", "last"),
    [
        (SystemPlace.ANYWHERE, ["S s", "S t", "U hi"], ["U hi", "S s", "A ho", "S t", "U so"], "S t"),
        (SystemPlace.HEAD, ["S s", "S t", "U hi"], ["U hi|s", "A ho", "U t|so"], "U t"),
        (SystemPlace.FIRST, ["S s|t", "U hi"], ["U hi|s", "A ho", "U t|so"], "U t"),
        (SystemPlace.NOWHERE, ["U s|t|hi"], ["U hi|s", "A ho", "U t|so"], "U t"),
    ],
)
def test_places_of_system_messages(place: SystemPlace, first: list[str], later: list[str], last: str) -> None:
    developer, system, answer = message("developer", "s"), message("system", "t"), message("assistant", "ho")
    assert short(adapt(developer, system, USER, system=place)) == first
    assert short(adapt(USER, developer, answer, system, message("user", "so"), system=place)) == later
    assert short(adapt(USER, answer, system, system=place))[-1] == last


def test_ids_have_the_familys_shape() -> None:
    messages = [USER, call_message("x", "y"), result("x", "1"), result("y", "2")]
    _, calls, *results = adapt(*messages, form=MISTRAL)
    ids = [call["id"] for call in calls["tool_calls"]]  # type: ignore[attr-defined]
    assert ids == [each["tool_call_id"] for each in results]
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", each) for each in ids)
    _, calls, *results = adapt(*messages, form=TOOL_FORMATS["kimi"])
    assert [each["tool_call_id"] for each in results] == ["functions.f:0", "functions.f:1"]


def with_tools(
    *messages: TemplateMessage, form: Any = HERMES, **shape: object
) -> tuple[list[TemplateMessage], object]:
    return adapted(messages, TOOLS, TemplateShape(**shape), form)  # type: ignore[arg-type]


def test_tools_stand_in_a_new_system_message_or_at_the_end_of_an_existing_one() -> None:
    (first, second), tools = with_tools(USER, system=SystemPlace.FIRST)
    assert (second, tools, first["role"]) == (USER, (), "system")
    assert json.dumps(FUNCTION) in str(first["content"])
    assert '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}' in str(first["content"])
    brief = message("developer", [{"type": "text", "text": "Be brief."}])
    (first, _), _ = with_tools(brief, USER, system=SystemPlace.FIRST)
    assert str(first["content"]).startswith("Be brief.\n\nYou can call")


def test_tools_stand_in_the_only_message_or_in_a_field_of_the_system_message() -> None:
    (message,), tools = with_tools(USER, form=GENERIC)
    assert re.fullmatch(r"U You can call these functions:.*\|hi", *short([message]), re.DOTALL)
    assert tools == ()
    (system, _), tools = with_tools(USER, system=SystemPlace.FIRST, shows_system_tools=True)
    assert (system["tools"], tools) == (json.dumps([FUNCTION]), ())


def test_tools_and_calls_become_text_if_the_form_of_a_template_is_unknown() -> None:
    shape = {"shows_tools": True, "calls": CallShape(), "system": SystemPlace.FIRST}
    messages, tools = with_tools(USER, call_message("x"), result("x", "1"), form=GENERIC, **shape)
    assert tools == ()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]


def random_conversation(rng: random.Random, words: Any) -> list[dict[str, Any]]:
    """Make a random conversation, with a word of its own in each text."""
    messages = [message(rng.choice(["system", "developer"]), next(words)) for _ in range(rng.randrange(3))]
    messages += [message("assistant", next(words))] * (rng.random() < 0.1)
    for _ in range(rng.randrange(1, 4)):
        messages += [message("user", next(words)) for _ in range(rng.choice([1, 1, 1, 2]))]
        messages += [message("system", next(words))] * (rng.random() < 0.2)
        for _ in range(rng.randrange(3)):
            messages += random_calls(rng, words)
        if rng.random() < 0.7:
            text = rng.choice([next(words), next(words), ""])
            thoughts = {"reasoning_content": "Hm."} if rng.random() < 0.3 else {}
            messages.append(message("assistant", text, **thoughts))
    if messages[-1]["role"] == "assistant":
        messages.append(message("user", next(words)))
    return messages


def random_calls(rng: random.Random, words: Any) -> list[dict[str, Any]]:
    ids = rng.choice([["a"], ["b", "c"], ["d", "e", "f"], ["c", "c"]])
    arguments = rng.choice(['{"a": "ö"}', "", " \n", "null", '{"a": "cut', "[1]", '{"deep": {"x": [1]}}'])
    message = call_message(*ids, arguments=arguments, content=rng.choice([None, "", next(words)]))
    results = [result(each, next(words)) for each in ids[: rng.choice([0, len(ids), len(ids), 1])]]
    rng.shuffle(results)
    return [message, *results]


@pytest.mark.parametrize("name", NAMES)
def test_every_template_shows_all_texts_of_a_conversation(name: str) -> None:
    rng = random.Random(7)
    for _ in range(12):
        messages = random_conversation(rng, (f"word{number:04d}" for number in range(1000)))
        text = rendered(name, messages)
        for word in (message["content"] for message in messages if message["content"]):
            assert text.count(word) == 1, (word, text)
        assert "\\u00f6" not in text


@pytest.mark.parametrize("name", NAMES)
def test_every_template_shows_tools_and_calls_with_results_in_the_order_of_their_calls(name: str) -> None:
    call = call_message("call_x", "call_y", arguments='{"city": "R\\u00f6me"}', name="climate")
    tools = [{"type": "function", "function": {**FUNCTION, "name": "climate", "description": "needle"}}]
    variables = {**VARIABLES, "functions": json.dumps([tools[0]["function"]])}
    messages = [USER, call, result("call_y", "sunny"), result("call_x", "mild")]
    text = rendered(name, messages, tools, variables)
    assert 0 < text.index("mild") < text.index("sunny")
    assert all(word in text for word in ("needle", "climate", "Röme"))


def test_texts_that_a_template_loses_are_missed_in_the_prompt() -> None:
    """This template loses all but the last six turns, of which it shows the calls as well."""
    source = (
        "{% for m in messages[-6:] %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    tokenizer = FakeTokenizer(adds_bos=False)
    chat_prompts = ChatPrompts(
        ChatTemplate(source, bos_text="", eos_text=""), tokenizer, HERMES, ControlNames(())
    )
    conversation = Conversation(messages=[message("user", f"word{number}") for number in range(9)])
    text = tokenizer.decode(chat_prompts.prompt(conversation).tokens)
    assert all(f"word{number}" in text for number in range(9))


def test_the_shape_of_a_template_is_probed() -> None:
    def shape(source: str) -> TemplateShape:
        return ChatTemplate(source, bos_text="", eos_text="").shape

    plain = shape("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert (plain.shows_tools, plain.calls, plain.system) == (False, None, SystemPlace.ANYWHERE)
    with_tools_and_calls = shape(
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    )
    assert (with_tools_and_calls.shows_tools, with_tools_and_calls.calls) == (True, CallShape())


def test_shapes_of_real_templates() -> None:
    expected = {
        "Qwen3.5-4B": (SystemPlace.FIRST, False, True),
        "Qwen-Qwen3-0.6B": (SystemPlace.ANYWHERE, False, True),
        "mistralai-Ministral-3-14B-Reasoning-2512": (SystemPlace.FIRST, True, False),
        "mistralai-Mistral-Nemo-Instruct-2407": (SystemPlace.NOWHERE, True, True),
        "Mistral-Small-3.2-24B-Instruct-2506": (SystemPlace.FIRST, True, True),
        "google-gemma-2-2b-it": (SystemPlace.NOWHERE, True, True),
        "openai-gpt-oss-120b": (SystemPlace.FIRST, False, True),
        "HuggingFaceTB-SmolLM3-3B": (SystemPlace.FIRST, False, True),
    }
    for name, takes in expected.items():
        found = template(name).shape
        assert (found.system, found.alternates, found.takes_empty) == takes, name


BARE = {"type": "object"}
ODD = {"type": "object", "properties": {"a": {"type": ["string", "null"], "enum": None}, "b": True}}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ByteDance-Seed-OSS", BARE),
        ("ByteDance-Seed-OSS", {"type": "object", "properties": {"a": {"anyOf": []}}}),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", ODD),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {"properties": {"a": {"type": {"b": 1}}}}),
        ("openai-gpt-oss-120b", {"type": "object", "properties": {"a": True}}),
        ("Apertus-8B-Instruct", ODD),
    ],
)
def test_tools_that_a_template_rejects_or_loses_become_text(name: str, parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "n33dle", "parameters": parameters}}]
    text = rendered(name, [USER, call_message("c"), result("c", "mild"), LATER], tools)
    assert all(word in text for word in ("n33dle", "mild", "and?"))


def test_tools_of_a_kind_that_a_template_does_not_show_become_text() -> None:
    source = (
        "{% for t in tools or [] if t.function.parameters.properties %}{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer = FakeTokenizer(adds_bos=False)
    chat_prompts = ChatPrompts(
        ChatTemplate(source, bos_text="", eos_text=""), tokenizer, HERMES, ControlNames(())
    )
    tools = [{"type": "function", "function": {"name": "n33dle", "parameters": BARE}}]
    text = tokenizer.decode(chat_prompts.prompt(Conversation(messages=[USER], tools=tools)).tokens)
    assert "n33dle" in text
    assert "<tool_call>" in text


@pytest.mark.parametrize("mark", ["<|channel|>", "<|channel|>analysis<|message|>x<|end|>", "a<|start|>b"])
@pytest.mark.parametrize("place", ["content", "reasoning_content"])
def test_marks_that_a_template_rejects_in_an_answer_are_text(mark: str, place: str) -> None:
    messages = [USER, {**message("assistant", "well"), place: f"so {mark} then"}, LATER]
    text = rendered("openai-gpt-oss-120b", messages)
    assert "and?" in text
    assert (f"so {mark} then" in text) is (place == "content")
