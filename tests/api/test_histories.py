"""What an agent has behind it goes on with every model: our own answers, and the conversations of Claude Code
and Codex."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
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
from tests.api.calls import ScriptedReader, call, end, text, whole
from tests.api.captures import captured
from tests.api.resolving import Responses
from tests.api.response_events import objects, stream, told
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


class ScriptedCall(ResolvedRequest, frozen=True, kw_only=True):
    script: tuple[Part, ...]

    def reader(self) -> PartsReader:
        return PartsReader(ScriptedReader(self.script))


def chat_history(of: ResolvedRequest, *events: Any) -> tuple[Json, list[str]]:
    """The body that goes on from the answer, and the ids of its calls."""
    message = json.loads(whole(ChatRenderer(), of, *events))["choices"][0]["message"]
    ids = [each["id"] for each in message.get("tool_calls", [])]
    results = [{"role": "tool", "tool_call_id": each, "content": f"result{i}"} for i, each in enumerate(ids)]
    return {"messages": [USER, message, *results, USER]}, ids


def messages_history(of: ResolvedRequest, *events: Any) -> tuple[Json, list[str]]:
    content = json.loads(whole(MessagesRenderer(), of, *events))["content"]
    ids = [each["id"] for each in content if each["type"] == "tool_use"]
    kind = "tool_result"
    results = [{"type": kind, "tool_use_id": each, "content": f"result{i}"} for i, each in enumerate(ids)]
    said = {"role": "user", "content": [*results, {"type": "text", "text": "on"}]}
    return {"max_tokens": 9, "messages": [USER, {"role": "assistant", "content": content}, said]}, ids


def responses_history(of: ResolvedRequest, *events: Any) -> tuple[Json, list[str]]:
    output = objects(told(stream(of), events))[-1]["response"]["output"]
    ids = [each["call_id"] for each in output if each["type"] == "function_call"]
    kind = "function_call_output"
    results = [{"type": kind, "call_id": each, "output": f"result{i}"} for i, each in enumerate(ids)]
    return {"input": [USER, *output, *results, USER]}, ids


USER: Json = {"role": "user", "content": "on"}
HISTORIES = {"chat": chat_history, "messages": messages_history, "responses": responses_history}


FAMILIES = {"chat": CHAT, "messages": MESSAGES_API, "responses": Responses()}


def asked(family: str, body: Mapping[str, object]) -> GenerationParams:
    return without_unsupported(FAMILIES[family].read(json.dumps(body).encode(), lenient=False))


def prompt_of(name: str, ask: GenerationParams) -> str:
    assert isinstance(ask.prompt, ConversationParam)
    tools = usable_tools(ask.tools)
    return rendered(name, [one.fields for one in ask.prompt.messages], tools.shown if tools else ())


@functools.cache
def history(family: str, answer: str) -> tuple[GenerationParams, int]:
    """The conversation behind an answer, and how many results it has."""
    parts, reason = ANSWERS[answer]
    scripted = ScriptedCall(**msgspec.structs.asdict(call()), script=parts)
    words = [text(0, "x" * len(parts))] if parts else []
    body, ids = HISTORIES[family](scripted, *words, end(0, reason))
    return asked(family, body), len(ids)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", HISTORIES)
def test_every_answer_of_ours_comes_back_and_is_shown(family: str, name: str) -> None:
    for answer, (parts, _) in ANSWERS.items():
        ask, num_results = history(family, answer)
        prompt = prompt_of(name, ask)
        shown = [part.text for part in parts if isinstance(part, Content)]
        shown += [part.name for part in parts if isinstance(part, CallBegin)]
        shown += [f"result{index}" for index in range(num_results)]
        shown += ["cut"] * (answer == "cut within a call") + ["ö"] * (answer == "calls")
        assert [word for word in shown if word not in prompt] == [], (answer, prompt)


# -- agents ----------------------------------------------------------------------------------------------

CLAUDE_CODE, CODEX = captured("claude_code"), captured("codex")
"""Conversations with a word in each part, `word-...`, and the user's `ask1` and `ask2`."""
WORDS = ("rules", "context", "later", "looking", "file", "todo", "done", "last")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("family", "body"), [("messages", CLAUDE_CODE), ("responses", CODEX)])
def test_an_agents_conversation_is_shown_whole_by_every_template(family: str, body: Json, name: str) -> None:
    prompt = prompt_of(name, asked(family, body))
    seen = [prompt.count(f"word-{word}") for word in WORDS]
    assert seen == [1] * len(WORDS), dict(zip(WORDS, seen, strict=True))
    assert "billing" not in prompt
    asks = [prompt.index(f"ask{number}") for number in (1, 2)]
    assert asks[0] < prompt.index("word-looking") < prompt.index("word-file")
    assert prompt.index("word-done") < asks[1]
    if family == "messages":
        assert prompt.index("word-file") < prompt.index("cannot see images"), "as the calls stand"
    else:
        assert prompt.index("word-todo") < prompt.index("word-file"), "as the calls stand"
        assert "word-patch" in prompt
