from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec

from openai_cpu_server.api.generation import params
from openai_cpu_server.api.generation.output import check_no_choice
from openai_cpu_server.api.generation.sampling import sampling_param
from openai_cpu_server.api.generation.schema import ForeignKind
from openai_cpu_server.api.generation.to_params import (
    adapted_names,
    reasoning_param,
    schema_form,
    sent_fields,
)
from openai_cpu_server.api.messages import schema
from openai_cpu_server.errors import missing, wrong
from openai_cpu_server.prompt.template import joined_texts, to_json

_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
"""Claude Code changes this line with each request, which prevents shared prefixes."""
_USES = {
    "auto": params.ToolUse.AUTO,
    "any": params.ToolUse.REQUIRED,
    "tool": params.ToolUse.NAMED,
    "none": None,
}
_SWITCHES = {"enabled": True, "disabled": False}
"""Other words leave it to the model."""
_ALLOWED = {
    "user": (schema.TextBlock, schema.ToolResultBlock, ForeignKind),
    "assistant": (
        schema.TextBlock,
        schema.ThinkingBlock,
        schema.RedactedThinkingBlock,
        schema.ToolUseBlock,
        ForeignKind,
    ),
    "system": (schema.TextBlock, ForeignKind),
}


class PlacedBlock(NamedTuple):
    block: schema.InputBlock
    at: str


def messages_params(body: schema.MessagesBody) -> params.GenerationParams:
    """The limit is a ceiling, because clients name the maximum of any model."""
    return msgspec.structs.replace(
        count_params(body),
        stream=bool(body.stream),
        max_tokens=params.LimitParam.ceiling(body.max_tokens, "max_tokens"),
        stop=tuple(body.stop_sequences or ()),
        user=body.metadata.user_id if body.metadata else None,
        cache=body.cache,
        details=params.DetailsParam(progress=bool(body.return_progress)),
    )


def count_params(body: schema.CountBody) -> params.GenerationParams:
    """Convert fields that count toward the prompt. Raises InvalidRequest for misplaced blocks."""
    turns = [*_turns(body)]
    messages = [message for turn in turns for message in _messages(turn)]
    system = _placed(body.system or "", "system", within="")
    foreign = [(block, at, False) for block, at in system if isinstance(block, ForeignKind)]
    foreign += _foreign_blocks(turns)
    _check_whole(turns[-1])
    left_out = [
        tool.named(f"tools[{index}]")
        for index, tool in enumerate(body.tools or ())
        if isinstance(tool, ForeignKind)
    ]
    left_out += [block.named(at) for block, at, _ in foreign if not block.is_attached]
    form = _form(body)
    if form is not None and messages[-1].role == "assistant":
        message = "cannot be combined with a last message of the assistant: the answer continues it."
        raise wrong(f"'{form.field}' {message}", "messages")
    return params.GenerationParams(
        id_prefix="msg_",
        prompt=params.ConversationParam(messages, "messages"),
        sampling=sampling_param(body),
        ignored=adapted_names(left_out, messages),
        model=body.model,
        stop_path="stop_sequences",
        form=form,
        tools=_tools(body),
        thinking=_thinking(body),
        attached=tuple(
            item for block, at, is_last in foreign for item in block.attached(at, is_latest=is_last)
        ),
    )


def _check_whole(turn: _Turn) -> None:
    for block, at in turn.blocks:
        if isinstance(block, ForeignKind) and block.emptiness is not None:
            raise wrong(f"'{at}': {block.emptiness}.", at)


def _foreign_blocks(turns: Sequence[_Turn]) -> Iterator[tuple[ForeignKind, str, bool]]:
    """Yield True for blocks of the last turn."""
    for turn in turns:
        for placed in turn.blocks:
            within = placed.block.content if isinstance(placed.block, schema.ToolResultBlock) else None
            for block, at in [*_placed(within or "", placed.at), placed]:
                if isinstance(block, ForeignKind):
                    yield block, at, turn is turns[-1]


def _thinking(body: schema.CountBody) -> params.ReasoningParam:
    """Ignore the effort where reasoning is off."""
    thinking = body.thinking
    is_on = None if thinking is None else _SWITCHES.get(thinking.type)
    if is_on is False:
        return reasoning_param(switches=[("thinking.type", False)])
    return reasoning_param(
        efforts=sent_fields(body, "output_config.effort"),
        switches=[("thinking.type", True)] if is_on else (),
        budgets=sent_fields(body, "thinking.budget_tokens") if is_on else (),
        is_hidden=thinking is not None and thinking.display == "omitted",
    )


# -- messages ------------------------------------------------------------------------------------------


class _Turn(NamedTuple):
    """Successive messages of one role, one turn as at Anthropic."""

    role: str
    blocks: Sequence[PlacedBlock]
    at: str


def _turns(body: schema.CountBody) -> Iterator[_Turn]:
    sent = [
        (message.role, f"messages[{index}]", message.content) for index, message in enumerate(body.messages)
    ]
    system = _system_text(body.system)
    first = [("system", "system", system)] if system else []
    for role, group in groupby([*first, *sent], key=itemgetter(0)):
        messages = [*group]
        blocks = [placed for _, at, content in messages for placed in _placed(content, at)]
        for block, at in blocks:
            if not isinstance(block, _ALLOWED[role]):
                message = f"'{at}': a message of the role '{role}' cannot have '{block.type}' blocks."
                raise wrong(message, at)
        if not blocks and role != "assistant":
            raise missing(f"{messages[0][1]}.content")
        yield _Turn(role, blocks, messages[0][1])


def _system_text(system: str | Sequence[schema.TextBlock | ForeignKind] | None) -> str:
    texts = [system] if isinstance(system, str) else [_text(block) for block in system or ()]
    if texts and (billing := _BILLING.match(texts[0])):
        texts[0] = texts[0][billing.end() :]
    return joined_texts(text for text in texts if text)


def _text(block: schema.InputBlock) -> str:
    match block:
        case schema.TextBlock(text=text):
            return text
        case ForeignKind(words=words):
            return words
    return ""


def _placed(
    content: str | Sequence[schema.InputBlock], at: str, within: str = ".content"
) -> list[PlacedBlock]:
    if isinstance(content, str):
        return [PlacedBlock(schema.TextBlock(type="text", text=content), at)]
    return [PlacedBlock(block, f"{at}{within}[{index}]") for index, block in enumerate(content)]


def _messages(turn: _Turn) -> Iterator[params.MessageParam]:
    """Results come first, because they answer the message before."""
    blocks = [placed.block for placed in turn.blocks]
    texts = [block for block in blocks if isinstance(block, (schema.TextBlock, ForeignKind))]
    text = joined_texts(map(_text, texts))
    if turn.role == "assistant":
        yield params.MessageParam(_assistant(blocks, text), path=turn.at)
        return
    for block, at in turn.blocks:
        if isinstance(block, schema.ToolResultBlock):
            result = {"role": "tool", "content": _result_text(block), "tool_call_id": block.tool_use_id}
            yield params.MessageParam(result, path=at)
    if texts:
        yield params.MessageParam({"role": turn.role, "content": text}, path=turn.at)


def _assistant(blocks: Sequence[schema.InputBlock], text: str) -> Mapping[str, object]:
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": to_json(block.input)},
        }
        for block in blocks
        if isinstance(block, schema.ToolUseBlock)
    ]
    thoughts = "\n".join(block.thinking for block in blocks if isinstance(block, schema.ThinkingBlock))
    fields: dict[str, object] = {"role": "assistant", "content": None if calls and not text else text}
    if calls:
        fields["tool_calls"] = calls
    if thoughts:
        fields["reasoning_content"] = thoughts
    return fields


def _result_text(result: schema.ToolResultBlock) -> str:
    """Mark an error in the text, because OpenAI's results have no field for it."""
    content = result.content or ""
    if not isinstance(content, str):
        content = joined_texts(map(_text, content))
    names_error = "error" in content[:32].lower()
    return f"Error: {content}" if result.is_error and not names_error else content


# -- tools and the answer's form -----------------------------------------------------------------------


def _tools(body: schema.CountBody) -> params.ToolsParam | None:
    choice = body.tool_choice
    if choice is not None and choice.type == "tool" and not choice.name:
        raise missing("tool_choice.name")
    functions = [
        params.FunctionParam(
            tool.name,
            f"tools[{index}]",
            f"tools[{index}].input_schema",
            tool.description,
            {"type": "object", **tool.input_schema},
            is_strict=bool(tool.strict),
        )
        for index, tool in enumerate(body.tools or ())
        if isinstance(tool, schema.CustomTool)
    ]
    if not functions:
        check_no_choice(choice.type if choice else None, without="tools", path="tool_choice")
        return None
    if choice is None:
        return params.ToolsParam(functions=tuple(functions))
    return params.ToolsParam(
        functions=tuple(functions),
        use=_USES[choice.type],
        chosen=(choice.name,) if choice.type == "tool" and choice.name else None,
        several=not choice.disable_parallel_tool_use,
    )


def _form(body: schema.CountBody) -> params.FormParam | None:
    form, path = body.output_format, "output_format"
    if body.output_config is not None and body.output_config.format is not None:
        form, path = body.output_config.format, "output_config.format"
    return None if form is None else schema_form(form.json_schema, f"{path}.schema", field=path)
