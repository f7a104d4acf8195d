"""Where a prompt ends: before, within or behind the thoughts. Pure."""

from __future__ import annotations

import enum

from openai_cpu_server.prompt.reasoning.formats import ReasoningFormat


class Stage(enum.Enum):
    """Where an output begins."""

    BEFORE = "before"
    """It may begin with thoughts, or with the answer."""
    WITHIN = "within"
    """The prompt has opened the thoughts."""
    BEHIND = "behind"
    """The prompt has closed the thoughts, or the answer has begun."""


def stage_behind(prompt: str, form: ReasoningFormat) -> Stage:
    """The stage behind a prompt that ends where the assistant's turn begins."""
    text = prompt.rstrip()
    if text.endswith(form.begin):
        return Stage.WITHIN
    return Stage.BEHIND if text.endswith((form.end, form.empty.rstrip())) else Stage.BEFORE


def begun_answer(stage: Stage, reasoning: str, content: str, form: ReasoningFormat) -> str:
    """What an answer that has begun already adds to a prompt of this stage. Text without thoughts is behind
    them; thoughts without text go on."""
    if form.begin in content or form.end in content:  # whoever writes the marks knows what they do
        return content
    if not reasoning and (not content or stage is not Stage.WITHIN):
        return form.answer_alone + content if content and stage is Stage.BEFORE else content
    opening = "" if stage is Stage.WITHIN else f"{form.begin}\n"
    if not content:
        return opening + reasoning
    return f"{opening}{reasoning}\n{form.end}{form.gap}{form.answer_begin}{content}"


def stage_within(stage: Stage, begun: str, form: ReasoningFormat) -> Stage:
    """The stage behind what an answer begins with, in a prompt that was of this stage before."""
    text = begun.lstrip()
    if stage is Stage.BEFORE and text:
        stage = Stage.WITHIN if text.startswith(form.begin) else Stage.BEHIND
    return Stage.BEHIND if stage is Stage.WITHIN and form.end in text else stage
