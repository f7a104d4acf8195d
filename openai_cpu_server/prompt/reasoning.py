"""Thoughts before an answer: model families' marks (data in `reasoning.toml`), and how a template
takes them."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from openai_cpu_server.prompt.template import PromptTemplate, TemplateMessage, content_text, tried


class ReasoningFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """White space around the marks belongs to neither thoughts nor answer."""

    name: str
    """Value of `--reasoning-format`."""
    begin: str
    end: str
    signs: tuple[str, ...]
    """Texts in a template of this format."""
    answer_begin: str = ""
    answer_alone: str = ""
    """Mark of an answer without thoughts."""
    turn_begin: str = ""
    """Stands before anything but the answer, such as calls."""
    answer_end: str = ""
    gap: str = "\n\n"
    efforts: tuple[str, ...] = ()
    """Levels of a model that cannot stop thinking, or ()."""
    levels: tuple[str, ...] = ()
    """Values of `reasoning_effort` that switch reasoning off and on, the first and the last, or ()."""
    has_channels: bool = False
    """True if the tool format has thoughts of its own, also between calls."""

    @property
    def empty(self) -> str:
        return f"{self.begin}\n\n{self.end}{self.gap}{self.answer_begin}"


REASONING_FORMATS = {
    name: msgspec.convert({"name": name, **table}, ReasoningFormat)
    for name, table in msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes()).items()
}


def reasoning_format_for(template: PromptTemplate) -> ReasoningFormat | None:
    taught = (
        each for each in REASONING_FORMATS.values() if all(sign in template.source for sign in each.signs)
    )
    return next(taught, None)


class ThinkingStage(enum.Enum):
    """End of a prompt relative to the thoughts."""

    BEFORE = "before"
    WITHIN = "within"
    BEHIND = "behind"


def stage_behind(prompt: str, form: ReasoningFormat) -> ThinkingStage:
    text = prompt.rstrip()
    if text.endswith(form.begin):
        return ThinkingStage.WITHIN
    ends = [form.end, form.empty.rstrip()]
    if form.turn_begin and not form.has_channels:
        ends += [form.end + form.turn_begin, form.answer_begin]
    return ThinkingStage.BEHIND if text.endswith(tuple(ends)) else ThinkingStage.BEFORE


def answer_prefix(stage: ThinkingStage, reasoning: str, content: str, form: ReasoningFormat) -> str:
    """Put text alone behind the thoughts; thoughts alone continue."""
    if form.begin in content or form.end in content:  # marks in the text are intended
        return content
    if not reasoning and (not content or stage is not ThinkingStage.WITHIN):
        return form.answer_alone + content if content and stage is ThinkingStage.BEFORE else content
    opening = "" if stage is ThinkingStage.WITHIN else f"{form.begin}\n"
    if not content:
        return opening + reasoning
    return f"{opening}{reasoning}\n{form.end}{form.gap}{form.answer_begin}{content}"


def stage_within(stage: ThinkingStage, beginning: str, form: ReasoningFormat) -> ThinkingStage:
    text = beginning.lstrip()
    if stage is ThinkingStage.BEFORE and text:
        stage = ThinkingStage.WITHIN if text.startswith(form.begin) else ThinkingStage.BEHIND
    return ThinkingStage.BEHIND if stage is ThinkingStage.WITHIN and form.end in text else stage


_NEEDLE = "needle 7c2e"
_WRITTEN_PARTS = re.compile("""['"]thinking['"]""")
"""Parts that a template wrote as text, because it takes texts only."""


class ReasoningField(enum.Enum):
    REASONING_CONTENT = "reasoning_content"
    THINKING = "thinking"
    REASONING = "reasoning"
    PARTS = "parts"
    NOWHERE = "nowhere"


def echo_of(template: PromptTemplate) -> ReasoningField:
    tried = (echo for echo in ReasoningField if echo is not ReasoningField.NOWHERE)
    return next((echo for echo in tried if _shows(template, echo)), ReasoningField.NOWHERE)


def with_echo(message: TemplateMessage, echo: ReasoningField) -> dict[str, object]:
    """Move a message's `reasoning_content` to where the template looks, or drop it."""
    fields = dict(message)
    reasoning = fields.pop("reasoning_content", None)
    if not isinstance(reasoning, str) or not reasoning or echo is ReasoningField.NOWHERE:
        return fields
    content = fields.get("content")
    if echo is ReasoningField.PARTS:
        parts = content if isinstance(content, list) else []
        if isinstance(content, str) and content:
            parts = [{"type": "text", "text": content}]
        return {**fields, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}
    if echo is ReasoningField.THINKING and content and fields.get("tool_calls"):
        # gpt-oss' template refuses both beside calls, and shows either of them as thoughts.
        return {**fields, "content": "", "thinking": f"{reasoning}\n\n{content_text(content)}"}
    return {**fields, echo.value: reasoning}


def _shows(template: PromptTemplate, echo: ReasoningField) -> bool:
    call = {"id": "000000000", "type": "function", "function": {"name": "f", "arguments": {}}}
    question = {"role": "user", "content": "a"}
    thoughts = {"role": "assistant", "reasoning_content": _NEEDLE}
    answered = with_echo({**thoughts, "content": "b"}, echo)
    called = with_echo({**thoughts, "content": "", "tool_calls": [call]}, echo)
    result = {"role": "tool", "content": "c", "tool_call_id": "000000000", "name": "f"}
    conversations: tuple[list[TemplateMessage], ...] = ([question, answered], [question, called, result])
    texts = [
        tried(partial(template.render, each, add_generation_prompt=False, extra=variables))
        for each in conversations
        for variables in ({}, switch(on=True))  # some show thoughts only where the next are wanted
    ]
    return any(_NEEDLE in text and not _WRITTEN_PARTS.search(text) for text in texts)


class TemplateReasoning(msgspec.Struct, frozen=True):
    form: ReasoningFormat
    echo: ReasoningField
    has_switch: bool
    thinks_by_default: bool
    reads_effort: bool

    def wants_thoughts(self, prompt: str) -> bool:
        """Return True if the model surely thinks first. A mark in the prompt teaches it to."""
        return self.thinks_by_default or self.form.begin in prompt


def switch(on: bool, levels: Sequence[str] = ()) -> dict[str, object]:
    """Return the variables that switch thinking, under all their names. `levels`: as in the format."""
    mode = "enabled" if on else "disabled"  # MiniMax M3
    effort = {"reasoning_effort": levels[-1 if on else 0]} if levels else {}
    return {"enable_thinking": on, "thinking": on, "reasoning": on, "thinking_mode": mode, **effort}


def template_reasoning(
    template: PromptTemplate, form: ReasoningFormat | None = None
) -> TemplateReasoning | None:
    """Return None if the model does not think. `form`: the user's choice, or None."""
    form = form or reasoning_format_for(template)
    if form is None:
        return None
    unasked, on, off = (
        tried(partial(template.render, [{"role": "user", "content": "a"}], extra=variables))
        for variables in ({}, switch(on=True, levels=form.levels), switch(on=False, levels=form.levels))
    )
    return TemplateReasoning(
        form=form,
        echo=echo_of(template),
        has_switch=on != off,
        thinks_by_default=unasked != off,
        reads_effort="reasoning_effort" in template.source,
    )
