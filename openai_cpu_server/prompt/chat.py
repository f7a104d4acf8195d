"""Turns a conversation into the prompt's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.messages import Message, content_text, template_messages
from openai_cpu_server.prompt.reasoning.echo import Echo, with_echo
from openai_cpu_server.prompt.reasoning.stage import Stage, begun_answer, stage_behind, stage_within
from openai_cpu_server.prompt.reasoning.template import TemplateReasoning
from openai_cpu_server.prompt.template import Template


class ChatText(NamedTuple):
    """A prompt, and where the output behind it begins."""

    text: str
    stage: Stage


class _Begun(NamedTuple):
    """What the answer begins with."""

    reasoning: str
    content: str


def render_chat(
    template: Template,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, object] | None = None,
    reasoning: TemplateReasoning | None = None,
    thinks_not: bool = False,
) -> ChatText:
    """The prompt's text, for `encode` with `parse_special`, and `add_special` if `needs_special_tokens`.

    A last message of the assistant is the beginning of its answer (prefill): the model continues it.
    `thinks_not`: the prompt ends behind the thoughts, also where the template knows no way to do without.

    Raises TemplateFailed, InvalidRequest.
    """
    prefill = _prefill(messages) if add_generation_prompt else None
    finished = messages if prefill is None else messages[:-1]
    echo = Echo.NOWHERE if reasoning is None else reasoning.echo
    told = template_messages(finished, as_parts=template.wants_parts, shape=template.call_shape)
    text = template.render(
        [with_echo(message, echo) for message in told],
        tools=tools or None,
        add_generation_prompt=add_generation_prompt,
        extra=extra,
    )
    if reasoning is None:
        return ChatText(text + (prefill.content if prefill else ""), Stage.BEHIND)
    rendered = ChatText(text, stage_behind(text, reasoning.form))
    if thinks_not:
        rendered = _closed(rendered, reasoning)
    return rendered if prefill is None else _continued(rendered, prefill, reasoning)


def needs_special_tokens(text: str, *, bos_text: str) -> bool:
    """Whether the tokenizer adds BOS: not if the template wrote one, because two of them confuse a model."""
    return not (bos_text and text.startswith(bos_text))


def _closed(rendered: ChatText, reasoning: TemplateReasoning) -> ChatText:
    """With the thoughts closed, if they are open, or if nothing tells the model to do without."""
    form = reasoning.form
    if rendered.stage is Stage.WITHIN:
        return ChatText(f"{rendered.text}\n{form.end}{form.gap}{form.answer_begin}", Stage.BEHIND)
    if rendered.stage is Stage.BEFORE and (not reasoning.has_switch or form.begin in rendered.text):
        return ChatText(rendered.text + form.empty, Stage.BEHIND)
    return rendered


def _continued(rendered: ChatText, prefill: _Begun, reasoning: TemplateReasoning) -> ChatText:
    begun = begun_answer(rendered.stage, prefill.reasoning, prefill.content, reasoning.form)
    return ChatText(rendered.text + begun, stage_within(rendered.stage, begun, reasoning.form))


def _prefill(messages: Sequence[Message]) -> _Begun | None:
    """What the answer begins with; None if it begins afresh."""
    if not messages or messages[-1].get("role") != "assistant":
        return None
    if messages[-1].get("tool_calls"):
        message = "The last message calls tools: the tools' answers must follow."
        raise InvalidRequest(message, code="invalid_value")
    content = content_text(messages[-1].get("content"), f"messages[{len(messages) - 1}].content")
    reasoning = messages[-1].get("reasoning_content")
    return _Begun(reasoning if isinstance(reasoning, str) else "", content)
