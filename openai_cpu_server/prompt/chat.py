"""Turns a conversation into the prompt's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.messages import Message, content_text, template_messages


def render_chat(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, object] | None = None,
) -> str:
    """The prompt's text, for `encode` with `parse_special`, and `add_special` if `needs_special_tokens`.

    A last message of the assistant is the beginning of its answer (prefill): the model continues it. Raises
    TemplateFailed, InvalidRequest.
    """
    prefill = _prefill(messages) if add_generation_prompt else None
    finished = messages if prefill is None else messages[:-1]
    text = template.render(
        template_messages(finished, as_parts=template.wants_parts, shape=template.call_shape),
        tools=tools or None,
        add_generation_prompt=add_generation_prompt,
        extra=extra,
    )
    return text + (prefill or "")


def needs_special_tokens(text: str, *, bos_text: str) -> bool:
    """Whether the tokenizer adds BOS: not if the template wrote one, because two of them confuse a model."""
    return not (bos_text and text.startswith(bos_text))


def _prefill(messages: Sequence[Message]) -> str | None:
    """The text that the answer begins with; None if it begins afresh."""
    if not messages or messages[-1].get("role") != "assistant":
        return None
    if messages[-1].get("tool_calls"):
        message = "The last message calls tools: the tools' answers must follow."
        raise InvalidRequest(message, param="messages", code="invalid_value")
    return content_text(messages[-1].get("content"), f"messages[{len(messages) - 1}].content")
