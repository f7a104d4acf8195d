from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from openai_cpu_server.api.chat import schema
from openai_cpu_server.api.generation import to_params
from openai_cpu_server.api.generation.output import check_no_choice
from openai_cpu_server.api.generation.params import (
    Attachment,
    ConversationParam,
    FunctionParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.api.generation.sampling import ignored_samplers
from openai_cpu_server.api.generation.schema import LACKS, ForeignKind, words_in
from openai_cpu_server.errors import InvalidRequest, missing, wrong
from openai_cpu_server.prompt.template import to_json


def chat_params(body: schema.ChatBody) -> GenerationParams:
    _check_continues(body)
    messages = [
        MessageParam(fields, path=f"messages[{index}]")
        for index, fields in enumerate(checked_messages(body.messages))
    ]
    params = to_params.generation_params(body, ConversationParam(messages, "messages"), id_prefix="chatcmpl-")
    names = [*_unsupported_tools(body), *unsupported_parts(body.messages), *ignored_samplers(body.samplers)]
    return msgspec.structs.replace(
        params,
        ignored=to_params.adapted_names(names, messages),
        logprobs=_logprobs(body),
        details=to_params.details_param(body),
        last_tokens=body.truncate_prompt_tokens,
        tools=_tools(body),
        thinking=to_params.thinking_of(body),
        template=body.chat_template,
        attached=tuple(message_attachments(body.messages)),
        max_tokens=_max_tokens(body),
    )


def _check_continues(body: schema.ChatBody) -> None:
    continues = body.messages[-1].role == "assistant"
    if body.continue_final_message and not continues:
        message = "Only a conversation that ends with an assistant's message can be continued."
        raise wrong(message, "continue_final_message")
    if body.add_generation_prompt is not None and body.add_generation_prompt is continues:
        what = "continued" if continues else "answered"
        message = f"Invalid value for 'add_generation_prompt': a conversation that ends so is {what}."
        raise wrong(message, "add_generation_prompt")


def _logprobs(body: schema.ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise wrong("'top_logprobs' is only allowed together with 'logprobs'.", "top_logprobs")
    return None


def _max_tokens(body: schema.ChatBody) -> LimitParam | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        message = "'max_tokens' and 'max_completion_tokens' name the same limit but differ; give one of them."
        raise wrong(message, "max_tokens")
    if new is not None:
        return LimitParam(new, "max_completion_tokens")
    return to_params.prediction_limit(body) if old is None else LimitParam(old, "max_tokens")


# -- messages ----------------------------------------------------------------------------------------------


def checked_messages(messages: Sequence[schema.Message]) -> list[dict[str, object]]:
    """Return known fields under their newest names. Raises InvalidRequest."""
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    for at, part, is_latest in _foreign_parts(messages):
        # Unsupported parts of earlier messages do not stop a conversation.
        if is_latest and not part.is_attached:
            param = f"{at}.type"
            raise InvalidRequest(_unseen(part, param), param=param, code="unsupported_content")
    return [_message_fields(message) for message in messages]


def unsupported_parts(messages: Sequence[schema.Message]) -> list[str]:
    return [
        part.named(at)
        for at, part, _ in _foreign_parts(messages)
        if part.type not in schema.REASONING_TYPES and not part.is_attached
    ]


def message_attachments(messages: Sequence[schema.Message]) -> list[Attachment]:
    """Attach a refusal for models without vision to the last message's images."""
    attachments: list[Attachment] = []
    for at, part, is_latest in _foreign_parts(messages):
        refusal = _unseen(part, f"{at}.type") if is_latest else None
        attachments += part.attached(at, is_latest=is_latest, refusal=refusal)
    return attachments


def _foreign_parts(messages: Sequence[schema.Message]) -> Iterator[tuple[str, ForeignKind, bool]]:
    """Yield True for parts of a last message by the user."""
    for index, message in enumerate(messages):
        is_latest = index == len(messages) - 1 and message.role == "user"
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, ForeignKind):
                yield f"messages[{index}].content[{number}]", part, is_latest


def _unseen(part: ForeignKind, param: str) -> str:
    if part.emptiness is not None:
        return f"Invalid value for '{param}': {part.emptiness}."
    taken = "only parts of type 'text' are supported"
    if part.type not in LACKS:  # which model it is is not known yet
        taken = "parts are of type 'text', 'file', or, as the model sees or hears, 'image_url', 'input_audio'"
    return f"Invalid value for '{param}': {part.lack}; {taken}."


def _check(message: schema.Message, at: str) -> None:
    has_content = message.content not in (None, []) or message.refusal is not None
    # An answer may have ended within its thoughts, and nothing is a result, too.
    if not has_content and message.role in ("system", "developer", "user"):
        raise missing(f"{at}.content")
    if message.function_call and message.role != "assistant":
        raise _misplaced(f"{at}.function_call", "assistant")
    if message.name is None and message.role == "function":
        raise missing(f"{at}.name")
    if message.tool_calls and message.role != "assistant":
        raise _misplaced(f"{at}.tool_calls", "assistant")
    if message.tool_call_id is not None and message.role != "tool":
        raise _misplaced(f"{at}.tool_call_id", "tool")
    if message.tool_call_id is None and message.role == "tool":
        raise missing(f"{at}.tool_call_id")


def _misplaced(param: str, role: str) -> InvalidRequest:
    return wrong(f"'{param}' belongs to messages of role '{role}'.", param)


def sent_reasoning(message: schema.Message) -> str | None:
    """Clients send it under one or all names, or as parts of the content."""
    thoughts = [
        words_in(part.fields.get("thinking") or part.fields.get("text"))
        for _, part, _ in _foreign_parts([message])
        if part.type in schema.REASONING_TYPES
    ]
    return message.reasoning_content or message.reasoning or message.thinking or "\n".join(thoughts) or None


def _message_fields(message: schema.Message) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role}
    if isinstance(message.content, list):
        parts = [part for part in message.content if part.type not in schema.REASONING_TYPES]
        texts = [part.words if isinstance(part, ForeignKind) else part.text for part in parts]
        fields["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        fields["content"] = message.content or message.refusal or ""
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call.id, call.function) for call in message.tool_calls]
    if message.role == "assistant" and (reasoning := sent_reasoning(message)):
        fields["reasoning_content"] = reasoning
    # A deprecated call is named by its function, because it has no id.
    if message.role == "function":
        fields |= {"role": "tool", "tool_call_id": f"function_{message.name}"}
    elif message.function_call is not None:
        fields["tool_calls"] = [_tool_call(f"function_{message.function_call.name}", message.function_call)]
    return fields


def _tool_call(call_id: str, function: schema.SentFunction) -> dict[str, object]:
    arguments = function.arguments
    if not isinstance(arguments, str):
        arguments = to_json(arguments or {})
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": arguments}}


# -- tools -------------------------------------------------------------------------------------------------


def _tools(body: schema.ChatBody) -> ToolsParam | None:
    if body.functions:
        return _legacy_tools(body, body.functions)
    check_no_choice(body.function_call, without="functions", path="function_call")
    functions = [
        _tool(tool, f"tools[{index}]")
        for index, tool in enumerate(body.tools or ())
        if not isinstance(tool, ForeignKind)
    ]
    if not functions:
        check_no_choice(body.tool_choice, without="tools", path="tool_choice")
        return None
    use, chosen = _choice(body)
    several = body.parallel_tool_calls is not False
    return ToolsParam(functions=tuple(functions), use=use, chosen=chosen, several=several)


def _choice(body: schema.ChatBody) -> tuple[ToolUse | None, tuple[str, ...] | None]:
    match body.tool_choice:
        case None:
            return ToolUse.AUTO, None
        case "none":
            return None, None
        case (
            schema.NamedTool(function=schema.FunctionName(name=name))
            | schema.NamedCustom(custom=schema.FunctionName(name=name))
        ):
            return ToolUse.NAMED, (name,)
        case schema.AllowedChoice(allowed_tools=allowed):
            names = tuple(
                tool.function.name if isinstance(tool, schema.NamedTool) else tool.custom.name
                for tool in allowed.tools
                if not isinstance(tool, ForeignKind)
            )
            if not names:
                path = "tool_choice.allowed_tools.tools"
                raise wrong(f"'{path}' names no function.", path)
            return ToolUse(allowed.mode), names
        case mode:
            return ToolUse(mode), None


def _tool(tool: schema.Tool | schema.ChatTextTool, path: str) -> FunctionParam:
    if isinstance(tool, schema.Tool):
        return _function(tool.function, f"{path}.function")
    custom, at = tool.custom, f"{path}.custom"
    grammar = custom.format.grammar if isinstance(custom.format, schema.NestedGrammarFormat) else None
    return to_params.custom_tool(custom.name, custom.description, grammar, at, f"{at}.format.grammar")


def _function(function: schema.LegacyFunction, path: str) -> FunctionParam:
    return FunctionParam(
        function.name,
        path,
        f"{path}.parameters",
        function.description,
        function.parameters,
        is_strict=isinstance(function, schema.Function) and bool(function.strict),
    )


def _unsupported_tools(body: schema.ChatBody) -> list[str]:
    """Reject MCP tools, because a chat's answer has no place for their calls."""
    others = [
        (f"tools[{at}]", tool) for at, tool in enumerate(body.tools or ()) if isinstance(tool, ForeignKind)
    ]
    for at, tool in others:
        if tool.type == "mcp":
            message = f"'{at}': tools of MCP servers are supported on /v1/responses only."
            raise InvalidRequest(message, param=f"{at}.type", code="unsupported_value")
    return [tool.named(at) for at, tool in others]


def _legacy_tools(body: schema.ChatBody, functions: list[schema.LegacyFunction]) -> ToolsParam:
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        if getattr(body, name) is not None:
            message = f"'{name}' and 'functions' cannot be combined; 'functions' is deprecated."
            raise wrong(message, "functions")
    chosen = (body.function_call.name,) if isinstance(body.function_call, schema.FunctionName) else None
    use = None if body.function_call == "none" else ToolUse.AUTO
    return ToolsParam(
        functions=tuple(_function(each, f"functions[{index}]") for index, each in enumerate(functions)),
        use=use if chosen is None else ToolUse.NAMED,
        chosen=chosen,
        several=False,
        path="functions",
        choice_path="function_call",
        is_legacy=True,
    )
