"""Gives the thoughts of earlier answers to a chat template, under the name that it reads."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from openai_cpu_server.errors import TemplateFailed
from openai_cpu_server.prompt.messages import Message, content_text
from openai_cpu_server.prompt.template import Template

_NEEDLE = "needle 7c2e"


class Echo(enum.Enum):
    """Where a template looks for the thoughts of a message. Of which turns, it decides."""

    REASONING_CONTENT = "reasoning_content"
    THINKING = "thinking"
    REASONING = "reasoning"
    PARTS = "parts"
    """Among the parts of the content."""
    NOWHERE = "nowhere"


def echo_of(template: Template) -> Echo:
    """Found out by trying, with an answer and with a tool call."""
    tried = (echo for echo in Echo if echo is not Echo.NOWHERE)
    return next((echo for echo in tried if _shows(template, echo)), Echo.NOWHERE)


def with_echo(message: Message, echo: Echo) -> dict[str, object]:
    """A message as templates expect it, with its `reasoning_content` where the template wants that, or
    without."""
    fields = dict(message)
    reasoning = fields.pop("reasoning_content", None)
    if not isinstance(reasoning, str) or not reasoning or echo is Echo.NOWHERE:
        return fields
    content = fields.get("content")
    if echo is Echo.PARTS:
        said = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
        return {**fields, "content": [{"type": "thinking", "thinking": reasoning}, *_list(said)]}
    if echo is Echo.THINKING and content and fields.get("tool_calls"):
        # gpt-oss' template refuses both beside calls, and shows either of them as thoughts.
        return {**fields, "content": "", "thinking": f"{reasoning}\n\n{content_text(content)}"}
    return {**fields, echo.value: reasoning}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _shows(template: Template, echo: Echo) -> bool:
    call = {"id": "000000000", "type": "function", "function": {"name": "f", "arguments": {}}}
    asked = {"role": "user", "content": "a"}
    thoughts = {"role": "assistant", "reasoning_content": _NEEDLE}
    answered = with_echo({**thoughts, "content": "b"}, echo)
    called = with_echo({**thoughts, "content": "", "tool_calls": [call]}, echo)
    result = {"role": "tool", "content": "c", "tool_call_id": "000000000", "name": "f"}
    return _finds(template, [asked, answered]) or _finds(template, [asked, called, result])


def _finds(template: Template, messages: Sequence[Message]) -> bool:
    try:
        return _NEEDLE in template.render(messages, add_generation_prompt=False)
    except TemplateFailed:
        return False
