"""What the rest of the house knows of a model's chat template, and messages as templates expect them.

Who only knows this runs no jinja2.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from openai_cpu_server.contract.model_info import FimTokens
from openai_cpu_server.errors import InvalidRequest, TemplateFailed, TooManyValues, wrong
from openai_cpu_server.json_size import check_size

Message = Mapping[str, object]


class CallShape(NamedTuple):
    """How a template wants earlier calls."""

    text_arguments: bool = False
    """Their arguments as JSON text, as OpenAI writes them; else as an object."""
    no_content: bool = False
    """A message without text has None for content; else "" ."""
    one_by_one: bool = False
    """A message has one call at most."""
    text_apart: bool = False
    """A message is shown to call or to say something, not both."""


class SystemPlace(enum.Enum):
    """Where a template takes the system's messages, and shows them."""

    NOWHERE = "nowhere"
    FIRST = "one, at the head"
    HEAD = "several, at the head"
    ANYWHERE = "anywhere"


class TemplateShape(msgspec.Struct, frozen=True):
    """What a template shows and takes, which was found out by trying."""

    wants_parts: bool = False
    """It shows a message's text only if the content is a list of parts."""
    shows_tools: bool = False
    """It tells the model which tools there are."""
    shows_system_tools: bool = False
    """It shows tools that stand, as JSON, in a field of the system message (Phi-4-mini's)."""
    system: SystemPlace = SystemPlace.NOWHERE
    alternates: bool = False
    """Users and answers must take turns, a user first. Calls and their results do not count."""
    takes_empty: bool = True
    """An answer may be empty."""
    calls: CallShape | None = None
    """How it wants earlier calls; None: it does not show them, or not their results."""


def to_json(value: object) -> str:
    """JSON as models read and write it: every letter is itself."""
    return json.dumps(value, ensure_ascii=False)


def template_messages(
    messages: Sequence[Message], *, as_parts: bool = False, shape: CallShape | None = None
) -> list[dict[str, object]]:
    """The messages as templates expect them.

    `developer` becomes `system`. The parts of a content become one text (with `as_parts`, a text becomes one
    part). Arguments of calls become an object, or its JSON where the template wants text. Fields that are
    None are left out.

    Raises InvalidRequest for content that is no text.
    """
    shape = shape or CallShape()
    return [_message(message, f"messages[{i}]", as_parts, shape) for i, message in enumerate(messages)]


MEDIA_MARK = re.compile(r"(?:picture|sound)[0-9a-f]{30}")
"""What stands for a picture or a sound in a text."""


def joined(texts: Iterable[str]) -> str:
    """The parts of a content as one text. Line breaks join texts, as in llama-server and vLLM; models were
    taught none around pictures and sounds."""
    pieces, breaks = list[str](), False
    for part in texts:
        is_item = MEDIA_MARK.fullmatch(part) is not None
        pieces += ("\n", part) if breaks and not is_item else (part,)
        breaks = not is_item
    return "".join(pieces)


def content_text(content: object, param: str = "messages") -> str:
    """The text of a content. Raises InvalidRequest."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return joined(_part_text(part, f"{param}[{index}]") for index, part in enumerate(content))
    raise _no_text(param)


def _message(message: Message, param: str, as_parts: bool, shape: CallShape) -> dict[str, object]:
    fields = {name: value for name, value in message.items() if value is not None}
    if fields.get("role") == "developer":
        fields["role"] = "system"
    text = content_text(message.get("content"), f"{param}.content")
    fields["content"] = [{"type": "text", "text": text}] if as_parts else text
    tool_calls = fields.pop("tool_calls", None)
    # Templates ask whether the field is there, not whether it has something in it.
    if isinstance(tool_calls, Sequence) and tool_calls:
        fields["tool_calls"] = [_tool_call(call, shape) for call in tool_calls]
        if shape.no_content and not text:
            fields["content"] = None
    return fields


def _part_text(part: object, param: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise _no_text(param)
    return text


def _tool_call(call: object, shape: CallShape) -> object:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    arguments: object = arguments_object(function.get("arguments"))
    if shape.text_arguments:
        arguments = to_json(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def arguments_object(arguments: object) -> Mapping[str, object]:
    """The arguments of an earlier call as an object, whatever a client or a model has made of them.

    OpenAI writes them as JSON text. Nothing (blank text, null) is an empty object; what is no object, such as
    text that was cut, stands under a name that says so.
    """
    parsed = _parsed(arguments) if isinstance(arguments, str) else arguments
    if isinstance(parsed, Mapping):
        return parsed
    return {} if parsed is None else {"arguments": parsed}


def _parsed(text: str) -> object:
    """The JSON value; the text itself if it is none, or too much of it; None if there is nothing."""
    if not text.strip():
        return None
    try:
        check_size(text.encode(errors="surrogatepass"))
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
        """The prompt's text. Raises TemplateFailed."""


def tried(rendering: Callable[[], str]) -> str:
    """What a template makes of messages by which is found out what it shows; "": it refuses them."""
    try:
        return rendering()
    except TemplateFailed:
        return ""


def fim_tokens(prefix: Sequence[int], suffix: Sequence[int], fim: FimTokens) -> tuple[int, ...]:
    """The prompt in the order prefix, suffix, middle: what the model generates then is the middle."""
    return (fim.prefix, *prefix, fim.suffix, *suffix, fim.middle)
