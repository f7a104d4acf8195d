"""Anthropic's conversations as chat's: the same messages, tools and wishes under OpenAI's names. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from openai_cpu_server.api.schemas.anthropic import (
    Block,
    CountBody,
    CustomTool,
    MessagesBody,
    OutputFormat,
    RedactedThinkingBlock,
    ServerTool,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from openai_cpu_server.api.schemas.chat import ChatBody, Message
from openai_cpu_server.api.schemas.parse import header_safe
from openai_cpu_server.api.schemas.structured import JsonSchemaFormat, ResponseFormat
from openai_cpu_server.api.schemas.tools import Function, FunctionName, NamedTool, Tool
from openai_cpu_server.errors import InvalidRequest

_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
"""Claude Code's first line of a system prompt, for Anthropic's books. It is another one in each request, so
that no prompt would begin like the one before."""
Mode = Literal["none", "auto", "required"]
_MODES: Mapping[str, Mode] = {"auto": "auto", "any": "required", "none": "none"}
_SWITCHES = {"enabled": True, "disabled": False}
"""With the other words the model decides, as it does unasked."""
_EFFORTS = {"max": "xhigh"}
_NAMES_OF_THINKING = {
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "thinking.type",
    "thinking_budget": "thinking.budget_tokens",
}
_ALLOWED = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}


class WideFunction(Function):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


class ToldBody(ChatBody):
    """A body of Anthropic's as chat's. Its `max_tokens` is the most that there may be, not what there must be
    room for. Most fields were checked under their other names."""

    names: Mapping[str, str] = {}
    """What the client calls the fields, by their paths here, for errors."""


class Placed(NamedTuple):
    block: Block
    at: str
    """Its path in the body."""


def told_as_chat(body: MessagesBody) -> ToldBody:
    """Raises InvalidRequest for blocks that stand where they cannot."""
    return _told(body).model_copy(
        update={
            "max_tokens": body.max_tokens,
            "stream": body.stream,
            "stop": body.stop_sequences or None,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "user": body.metadata.user_id if body.metadata else None,
            "cache": body.cache,
        }
    )


def prompt_as_chat(body: CountBody) -> ToldBody:
    """As much of it as decides how long the prompt is. Raises InvalidRequest."""
    return _told(body)


def skipped_tools(body: CountBody) -> tuple[str, ...]:
    """Tools that only Anthropic's servers have, as a header names them."""
    tools = enumerate(body.tools or ())
    return tuple(
        f"tools[{index}] ({header_safe(tool.type)})" for index, tool in tools if isinstance(tool, ServerTool)
    )


def in_their_words(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The same error with the names of fields that the client has used."""
    if not names:
        return error
    longest_first = sorted(names, key=len, reverse=True)
    pattern = re.compile(rf"(?:^|(?<='))(?:{'|'.join(map(re.escape, longest_first))})(?=$|['.\[])")

    def translated(text: str) -> str:
        return pattern.sub(lambda match: names[match.group()], text)

    param = None if error.param is None else translated(error.param)
    return InvalidRequest(translated(str(error)), param=param, code=error.code)


def _told(body: CountBody) -> ToldBody:
    messages = list(_messages(body))
    form, form_at = _output_format(body)
    if form is not None and messages[-1].role == "assistant":
        message = (
            f"'{form_at}' cannot be combined with a last message of the assistant: the answer continues it."
        )
        raise InvalidRequest(message, param="messages", code="invalid_value")
    tools = [(index, tool) for index, tool in enumerate(body.tools or ()) if isinstance(tool, CustomTool)]
    choice = body.tool_choice
    names = {
        "stop": "stop_sequences",
        "response_format.json_schema.schema": f"{form_at}.schema",
        "response_format": form_at,
        **_NAMES_OF_THINKING,
        **_names_of_tools([index for index, _ in tools]),
    }
    return ToldBody(model=body.model, messages=messages, names=names).model_copy(
        update={
            "tools": [_tool(tool) for _, tool in tools] or None,
            "tool_choice": _choice(choice, has_tools=bool(tools)),
            "parallel_tool_calls": False if tools and choice and choice.disable_parallel_tool_use else None,
            "response_format": _response_format(form),
            **_thinking(body),
        }
    )


def _thinking(body: CountBody) -> dict[str, object]:
    """How hard to try is about thoughts here, so it says nothing where there are to be none."""
    effort = body.output_config.effort if body.output_config else None
    efforts: dict[str, object] = {"reasoning_effort": _EFFORTS.get(effort, effort)} if effort else {}
    if body.thinking is None:
        return efforts
    shown: dict[str, object] = {"include_reasoning": False} if body.thinking.display == "omitted" else {}
    if body.thinking.type not in _SWITCHES:
        return {**efforts, **shown}
    is_on = _SWITCHES[body.thinking.type]
    if not is_on:
        return {"enable_thinking": False}
    return {**efforts, **shown, "enable_thinking": True, "thinking_budget": body.thinking.budget_tokens}


def _names_of_tools(indexes: Sequence[int]) -> dict[str, str]:
    names = {}
    for told, given in enumerate(indexes):
        names[f"tools[{told}].function.parameters"] = f"tools[{given}].input_schema"
        names[f"tools[{told}].function"] = f"tools[{given}]"
    return names


# -- messages ------------------------------------------------------------------------------------------


def _messages(body: CountBody) -> Iterator[Message]:
    """Successive messages of one role are one turn, as at Anthropic."""
    given = [
        (message.role, f"messages[{index}]", message.content) for index, message in enumerate(body.messages)
    ]
    system = _system_text(body.system)
    first = [("system", "system", system)] if system else []
    for role, turn in groupby([*first, *given], key=itemgetter(0)):
        blocks = [placed for _, at, content in turn for placed in _placed(content, at)]
        for placed in blocks:
            _check_place(placed, role)
        yield from _turn(role, [placed.block for placed in blocks])


def _system_text(system: str | Sequence[object] | None) -> str:
    texts = (
        [system] if isinstance(system, str) else [b.text for b in system or () if isinstance(b, TextBlock)]
    )
    if texts and (billing := _BILLING.match(texts[0])):
        texts[0] = texts[0][billing.end() :]
    return "\n".join(text for text in texts if text)


def _placed(content: str | Sequence[Block], at: str) -> list[Placed]:
    if isinstance(content, str):
        return [Placed(TextBlock(type="text", text=content), at)]
    return [Placed(block, f"{at}.content[{index}]") for index, block in enumerate(content)]


def _check_place(placed: Placed, role: str) -> None:
    if not isinstance(placed.block, _ALLOWED[role]):
        message = f"'{placed.at}': a message of the role '{role}' cannot have '{placed.block.type}' blocks."
        raise InvalidRequest(message, param=placed.at, code="invalid_value")


def _turn(role: str, blocks: Sequence[Block]) -> Iterator[Message]:
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    if role == "system":
        yield Message(role="system", content=text)
    elif role == "assistant":
        yield _assistant(blocks, text)
    else:
        yield from _user(blocks, text)


def _user(blocks: Sequence[Block], text: str) -> Iterator[Message]:
    """Results come first: they answer the message before."""
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    for result in results:
        yield Message(role="tool", content=_result_text(result), tool_call_id=result.tool_use_id)
    if len(results) < len(blocks):
        yield Message(role="user", content=text)


def _assistant(blocks: Sequence[Block], text: str) -> Message:
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    thoughts = "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    fields: dict[str, object] = {"role": "assistant", "content": None if calls and not text else text}
    if calls:
        fields["tool_calls"] = calls
    if thoughts:
        fields["reasoning_content"] = thoughts
    return Message.model_validate(fields)


def _call(block: ToolUseBlock) -> dict[str, object]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result_text(result: ToolResultBlock) -> str:
    """OpenAI's results cannot say that they are errors, so the text does, if it does not yet."""
    content = result.content or ""
    if not isinstance(content, str):
        content = "\n".join(block.text for block in content if isinstance(block, TextBlock))
    is_told = "error" in content[:32].lower()
    return f"Error: {content}" if result.is_error and not is_told else content


# -- tools and the answer's form -----------------------------------------------------------------------


def _tool(tool: CustomTool) -> Tool:
    schema = {"type": "object", **tool.input_schema}
    described = WideFunction(
        name=tool.name, description=tool.description, parameters=schema, strict=tool.strict
    )
    return Tool(type="function", function=described)


def _choice(choice: ToolChoice | None, *, has_tools: bool) -> Mode | NamedTool | None:
    """Raises InvalidRequest for a tool that has no name."""
    if choice is None or (not has_tools and choice.type == "auto"):
        return None
    if choice.type != "tool":
        return _MODES[choice.type]
    if not choice.name:
        param = "tool_choice.name"
        message = f"Missing required parameter: '{param}'."
        raise InvalidRequest(message, param=param, code="missing_required_parameter")
    return NamedTool(type="function", function=FunctionName(name=choice.name))


def _output_format(body: CountBody) -> tuple[OutputFormat | None, str]:
    """The wish and its path. The newer name goes first."""
    if body.output_config is not None and body.output_config.format is not None:
        return body.output_config.format, "output_config.format"
    return body.output_format, "output_format"


def _response_format(form: OutputFormat | None) -> ResponseFormat | None:
    if form is None:
        return None
    described = JsonSchemaFormat.model_validate(
        {"name": "output", "schema": form.json_schema, "strict": True}
    )
    return ResponseFormat(type="json_schema", json_schema=described)
