"""Interface of a chat template. Importing this does not load jinja2."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from openai_cpu_server.contract.model_info import FimTokens
from openai_cpu_server.errors import InvalidRequest, TemplateFailed, TooManyValues, wrong
from openai_cpu_server.json_size import check_json_size

TemplateMessage = Mapping[str, object]


class CallShape(NamedTuple):
    text_arguments: bool = False
    """Arguments are JSON text, as OpenAI writes them, not an object."""
    no_content: bool = False
    """Content is None, not "", in a message without text."""
    one_by_one: bool = False
    text_apart: bool = False


class SystemPlace(enum.Enum):
    NOWHERE = "nowhere"
    FIRST = "one, at the head"
    HEAD = "several, at the head"
    ANYWHERE = "anywhere"


class TemplateShape(msgspec.Struct, frozen=True):
    """Found by trial renderings."""

    wants_parts: bool = False
    shows_tools: bool = False
    shows_system_tools: bool = False
    """The system message has tools as JSON in a field (Phi-4-mini's)."""
    system: SystemPlace = SystemPlace.NOWHERE
    alternates: bool = False
    """Users and answers must alternate, a user first. Calls do not count."""
    takes_empty: bool = True
    calls: CallShape | None = None
    """Shape, or None if calls or results are not shown."""


def to_json(value: object) -> str:
    """Write every letter as itself, as models do."""
    return json.dumps(value, ensure_ascii=False)


def template_messages(
    messages: Sequence[TemplateMessage], *, as_parts: bool = False, shape: CallShape | None = None
) -> list[dict[str, object]]:
    """Write `developer` as `system`, join content, drop fields of None. Raises InvalidRequest."""
    shape = shape or CallShape()
    return [_message(message, f"messages[{i}]", as_parts, shape) for i, message in enumerate(messages)]


MEDIA_MARK = re.compile(r"(?:picture|sound)[0-9a-f]{30}")


def joined_texts(texts: Iterable[str]) -> str:
    """Line breaks join texts, as in llama-server and vLLM; models learned none around media."""
    pieces, breaks = list[str](), False
    for part in texts:
        is_item = MEDIA_MARK.fullmatch(part) is not None
        pieces += ("\n", part) if breaks and not is_item else (part,)
        breaks = not is_item
    return "".join(pieces)


def content_text(content: object, param: str = "messages") -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = []
        for index, part in enumerate(content):
            text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
            if not isinstance(text, str):
                raise _no_text(f"{param}[{index}]")
            texts.append(text)
        return joined_texts(texts)
    raise _no_text(param)


def _message(message: TemplateMessage, param: str, as_parts: bool, shape: CallShape) -> dict[str, object]:
    fields = {name: value for name, value in message.items() if value is not None}
    if fields.get("role") == "developer":
        fields["role"] = "system"
    text = content_text(message.get("content"), f"{param}.content")
    fields["content"] = [{"type": "text", "text": text}] if as_parts else text
    tool_calls = fields.pop("tool_calls", None)
    # Templates test whether the field is there, not whether it is empty.
    if isinstance(tool_calls, Sequence) and tool_calls:
        fields["tool_calls"] = [_tool_call(call, shape) for call in tool_calls]
        if shape.no_content and not text:
            fields["content"] = None
    return fields


def _tool_call(call: object, shape: CallShape) -> object:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    arguments: object = arguments_object(function.get("arguments"))
    if shape.text_arguments:
        arguments = to_json(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def arguments_object(arguments: object) -> Mapping[str, object]:
    """Blank text and null become {}; other values, such as cut JSON, get the name `arguments`."""
    parsed = _parsed(arguments) if isinstance(arguments, str) else arguments
    if isinstance(parsed, Mapping):
        return parsed
    return {} if parsed is None else {"arguments": parsed}


def _parsed(text: str) -> object:
    if not text.strip():
        return None
    try:
        check_json_size(text.encode(errors="surrogatepass"))
        value: object = json.loads(text)
    except (ValueError, RecursionError, TooManyValues):
        return text
    return value


def _no_text(param: str) -> InvalidRequest:
    return wrong(f"Invalid value for '{param}': only text is supported.", param)


class PromptTemplate(Protocol):
    source: str
    shape: TemplateShape

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """Write the prompt's text. Raises TemplateFailed."""


def tried(rendering: Callable[[], str]) -> str:
    try:
        return rendering()
    except TemplateFailed:
        return ""


def fim_tokens(prefix: Sequence[int], suffix: Sequence[int], fim: FimTokens) -> tuple[int, ...]:
    return (fim.prefix, *prefix, fim.suffix, *suffix, fim.middle)
