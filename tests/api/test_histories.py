"""Histories that agents send back, rendered by every template: our own answers, and conversations of Claude
Code and Codex."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.generation.attachments import without_unsupported
from openai_cpu_server.api.generation.call import PartsReader, ResolvedRequest
from openai_cpu_server.api.generation.output import usable_tools
from openai_cpu_server.api.generation.params import ConversationParam, GenerationParams
from openai_cpu_server.api.messages.render import MessagesRenderer
from openai_cpu_server.api.messages.routes import MESSAGES_API
from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.prompt.tool_formats import CallArguments, CallBegin, Content, Part, ThinkingText
from tests.api.calls import call, end, figures, response_stream, text, whole
from tests.api.captures import captured
from tests.api.resolving import Responses
from tests.prompt.test_conversation import NAMES, rendered

Json = dict[str, Any]
ANSWERS: dict[str, tuple[tuple[Part, ...], FinishReason]] = {
    "whole": ((Content("Hello"),), FinishReason.STOP),
    "empty": ((), FinishReason.LENGTH),
    "thought": ((ThinkingText("Hm"), Content("Hello")), FinishReason.STOP),
    "cut in its thoughts": ((ThinkingText("Hm"),), FinishReason.LENGTH),
    "calls": (
        (
            ThinkingText("Hm"),
            Content("Look"),
            CallBegin("seek"),
            CallArguments('{"a":"ö"}'),
            CallBegin("find"),
            CallArguments("{}"),
        ),
        FinishReason.STOP,
    ),
    "a call without arguments": ((CallBegin("seek"),), FinishReason.LENGTH),
    "cut within a call": (
        (CallBegin("seek"), CallArguments("{}"), CallBegin("find"), CallArguments('{"a":"cut')),
        FinishReason.LENGTH,
    ),
}


class ScriptedReader:
    """Reads each character as the part that a script has for it: an output with all kinds of parts."""

    is_cut = False
    has_calls = True

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)

    def feed(self, text: str) -> list[Part]:
        return [self._parts.pop(0) for _ in text]

    def finish(self) -> list[Part]:
        return []


class ScriptedCall(ResolvedRequest, frozen=True, kw_only=True):
    script: tuple[Part, ...]

    def reader(self) -> PartsReader:
        return PartsReader(ScriptedReader(self.script))


def chat_history(request: ResolvedRequest, *events: Any) -> tuple[Json, list[str]]:
    """The body that continues after the answer, and the ids of its calls."""
    message = json.loads(whole(ChatRenderer(), request, *events))["choices"][0]["message"]
    ids = [each["id"] for each in message.get("tool_calls", [])]
    results = [{"role": "tool", "tool_call_id": each, "content": f"result{i}"} for i, each in enumerate(ids)]
    return {"messages": [USER, message, *results, USER]}, ids


def messages_history(request: ResolvedRequest, *events: Any) -> tuple[Json, list[str]]:
    content = json.loads(whole(MessagesRenderer(), request, *events))["content"]
    ids = [each["id"] for each in content if each["type"] == "tool_use"]
    kind = "tool_result"
    results = [{"type": kind, "tool_use_id": each, "content": f"result{i}"} for i, each in enumerate(ids)]
    message = {"role": "user", "content": [*results, {"type": "text", "text": "on"}]}
    return {"max_tokens": 9, "messages": [USER, {"role": "assistant", "content": content}, message]}, ids


def responses_history(request: ResolvedRequest, *events: Any) -> tuple[Json, list[str]]:
    stream = response_stream(request)
    stream.begin()
    for event in events:
        stream.event(event)
    *_, completed = stream.end(figures(call(), {"c-0": events[-1].finish}))
    output = json.loads(completed.json)["response"]["output"]
    ids = [each["call_id"] for each in output if each["type"] == "function_call"]
    kind = "function_call_output"
    results = [{"type": kind, "call_id": each, "output": f"result{i}"} for i, each in enumerate(ids)]
    return {"input": [USER, *output, *results, USER]}, ids


USER: Json = {"role": "user", "content": "on"}
HISTORIES = {"chat": chat_history, "messages": messages_history, "responses": responses_history}
FAMILIES = {"chat": CHAT, "messages": MESSAGES_API, "responses": Responses()}


def params_of(family: str, body: Mapping[str, object]) -> GenerationParams:
    return without_unsupported(FAMILIES[family].read(json.dumps(body).encode(), lenient=False))


def prompt_of(name: str, params: GenerationParams) -> str:
    assert isinstance(params.prompt, ConversationParam)
    tools = usable_tools(params.tools)
    return rendered(name, [one.fields for one in params.prompt.messages], tools.shown if tools else ())


@functools.cache
def history(family: str, answer: str) -> tuple[GenerationParams, int]:
    """The conversation that ends with this answer and its results, and the number of its results."""
    parts, reason = ANSWERS[answer]
    scripted = ScriptedCall(**msgspec.structs.asdict(call()), script=parts)
    words = [text(0, "x" * len(parts))] if parts else []
    body, ids = HISTORIES[family](scripted, *words, end(0, reason))
    return params_of(family, body), len(ids)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", HISTORIES)
def test_every_answer_that_a_client_sends_back_is_in_the_prompt(family: str, name: str) -> None:
    for answer, (parts, _) in ANSWERS.items():
        params, num_results = history(family, answer)
        prompt = prompt_of(name, params)
        shown = [part.text for part in parts if isinstance(part, Content)]
        shown += [part.name for part in parts if isinstance(part, CallBegin)]
        shown += [f"result{index}" for index in range(num_results)]
        shown += ["cut"] * (answer == "cut within a call") + ["ö"] * (answer == "calls")
        assert [word for word in shown if word not in prompt] == [], (answer, prompt)


# -- agents ----------------------------------------------------------------------------------------------

CLAUDE_CODE, CODEX = captured("claude_code"), captured("codex")
"""Conversations with a word in each part, `word-...`, and the user's words `ask1` and `ask2`."""
WORDS = ("rules", "context", "later", "looking", "file", "todo", "done", "last")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("family", "body"), [("messages", CLAUDE_CODE), ("responses", CODEX)])
def test_every_template_writes_an_agents_whole_conversation(family: str, body: Json, name: str) -> None:
    prompt = prompt_of(name, params_of(family, body))
    seen = [prompt.count(f"word-{word}") for word in WORDS]
    assert seen == [1] * len(WORDS), dict(zip(WORDS, seen, strict=True))
    assert "billing" not in prompt
    positions = [prompt.index(f"ask{number}") for number in (1, 2)]
    assert positions[0] < prompt.index("word-looking") < prompt.index("word-file")
    assert prompt.index("word-done") < positions[1]
    if family == "messages":
        assert prompt.index("word-file") < prompt.index("cannot see images"), "in the order of the calls"
    else:
        assert prompt.index("word-todo") < prompt.index("word-file"), "in the order of the calls"
        assert "word-patch" in prompt
