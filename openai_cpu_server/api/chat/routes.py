"""Routes of `/v1/chat/completions`, and conversion of a body to a `GenerationParams`."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from openai_cpu_server.api.chat.body import (
    AllowedChoice,
    ChatBody,
    ChatTextTool,
    Function,
    FunctionName,
    LegacyFunction,
    NamedCustom,
    NamedTool,
    NestedGrammarFormat,
    Tool,
    attached_in,
    checked_messages,
    told_in_words,
)
from openai_cpu_server.api.chat.render import ChatCompletion, ChatRenderer
from openai_cpu_server.api.chat.socket import ChatExchange
from openai_cpu_server.api.generation.body import ForeignKind
from openai_cpu_server.api.generation.output import check_no_choice
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    FunctionParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.api.generation.route import (
    ApiAdapter,
    BodyReader,
    CountRoute,
    GenerationRoute,
    InputTokens,
)
from openai_cpu_server.api.generation.sampling import left_out, with_samplers
from openai_cpu_server.api.generation.thinking import thinking_of
from openai_cpu_server.api.generation.to_params import (
    adapted_names,
    asked_details,
    custom_tool,
    generation_ask,
    prediction,
)
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.errors import InvalidRequest, wrong
from openai_cpu_server.http.clients import SUBPROTOCOL
from openai_cpu_server.http.keys import CALLS, INFERENCE, WORK
from openai_cpu_server.http.routes import GENERATION_ERRORS, WEBSOCKET, ApiRoute, ApiRouter
from openai_cpu_server.http.sockets import SocketServer


def chat_ask(body: ChatBody) -> GenerationParams:
    _check_continues(body)
    told = enumerate(checked_messages(body.messages))
    messages = [MessageParam(fields, path=f"messages[{index}]") for index, fields in told]
    ask = generation_ask(body, ConversationParam(messages, "messages"), id_prefix="chatcmpl-")
    return msgspec.structs.replace(
        ask,
        ignored=adapted_names(
            [*_other_tools(body), *told_in_words(body.messages), *left_out(body.samplers)], messages
        ),
        sampling=with_samplers(ask.sampling, body.samplers),
        logprobs=_logprobs(body),
        details=asked_details(body),
        last_tokens=body.truncate_prompt_tokens,
        tools=_tools(body),
        thinking=thinking_of(body),
        template=body.chat_template,
        attached=tuple(attached_in(body.messages)),
        max_tokens=_max_tokens(body),
    )


def _check_continues(body: ChatBody) -> None:
    continues = body.messages[-1].role == "assistant"
    if body.continue_final_message and not continues:
        message = "A conversation that ends with another's message is answered, not continued."
        raise wrong(message, "continue_final_message")
    if body.add_generation_prompt is not None and body.add_generation_prompt is continues:
        what = "continued" if continues else "answered"
        message = f"Invalid value for 'add_generation_prompt': a conversation that ends so is {what}."
        raise wrong(message, "add_generation_prompt")


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise wrong("'top_logprobs' is only allowed together with 'logprobs'.", "top_logprobs")
    return None


def _max_tokens(body: ChatBody) -> LimitParam | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        message = "'max_tokens' and 'max_completion_tokens' name the same limit but differ; give one of them."
        raise wrong(message, "max_tokens")
    if new is not None:
        return LimitParam(new, "max_completion_tokens")
    return prediction(body) if old is None else LimitParam(old, "max_tokens")


def _tools(body: ChatBody) -> ToolsParam | None:
    if body.functions:
        return _legacy_tools(body, body.functions)
    check_no_choice(body.function_call, without="functions", path="function_call")
    if not body.tools:
        check_no_choice(body.tool_choice, without="tools", path="tool_choice")
        return None
    functions = [
        _asked_tool(tool, f"tools[{index}]")
        for index, tool in enumerate(body.tools)
        if not isinstance(tool, ForeignKind)
    ]
    if not functions:
        check_no_choice(body.tool_choice, without="tools", path="tool_choice")
        return None
    use, chosen = _choice(body)
    several = body.parallel_tool_calls is not False
    return ToolsParam(functions=tuple(functions), use=use, chosen=chosen, several=several)


def _choice(body: ChatBody) -> tuple[ToolUse | None, tuple[str, ...] | None]:
    match body.tool_choice:
        case None:
            return ToolUse.AUTO, None
        case "none":
            return None, None
        case NamedTool(function=FunctionName(name=name)) | NamedCustom(custom=FunctionName(name=name)):
            return ToolUse.NAMED, (name,)
        case AllowedChoice(allowed_tools=allowed):
            named = tuple(_name(tool) for tool in allowed.tools if not isinstance(tool, ForeignKind))
            if not named:
                path = "tool_choice.allowed_tools.tools"
                raise wrong(f"'{path}' names no function.", path)
            return ToolUse(allowed.mode), named
        case mode:
            return ToolUse(mode), None


def _name(tool: NamedTool | NamedCustom) -> str:
    return tool.function.name if isinstance(tool, NamedTool) else tool.custom.name


def _asked_tool(tool: Tool | ChatTextTool, path: str) -> FunctionParam:
    if isinstance(tool, Tool):
        return _asked(tool.function, f"{path}.function")
    given, at = tool.custom, f"{path}.custom"
    grammar = given.format.grammar if isinstance(given.format, NestedGrammarFormat) else None
    return custom_tool(given.name, given.description, grammar, at, f"{at}.format.grammar")


def _other_tools(body: ChatBody) -> list[str]:
    """Reject tools of MCP servers, because a chat's answer has no place for their calls."""
    others = [
        (f"tools[{at}]", tool) for at, tool in enumerate(body.tools or ()) if isinstance(tool, ForeignKind)
    ]
    for at, tool in others:
        if tool.type == "mcp":
            message = f"'{at}': tools of MCP servers are called for /v1/responses only."
            raise InvalidRequest(message, param=f"{at}.type", code="unsupported_value")
    return [tool.named(at) for at, tool in others]


def _legacy_tools(body: ChatBody, functions: list[LegacyFunction]) -> ToolsParam:
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        if getattr(body, name) is not None:
            message = f"'{name}' and 'functions' cannot be combined; 'functions' is deprecated."
            raise wrong(message, "functions")
    chosen = (body.function_call.name,) if isinstance(body.function_call, FunctionName) else None
    use = None if body.function_call == "none" else ToolUse.AUTO
    return ToolsParam(
        functions=tuple(_asked(each, f"functions[{index}]") for index, each in enumerate(functions)),
        use=use if chosen is None else ToolUse.NAMED,
        chosen=chosen,
        several=False,
        path="functions",
        choice_path="function_call",
        is_legacy=True,
    )


def _asked(function: LegacyFunction, path: str) -> FunctionParam:
    is_strict = isinstance(function, Function) and bool(function.strict)
    at = f"{path}.parameters"
    return FunctionParam(
        function.name, path, at, function.description, function.parameters, is_strict=is_strict
    )


CHAT = ApiAdapter(BodyReader(ChatBody, chat_ask), ChatRenderer())


class ChatRoutes:
    def __init__(self, parts: AppState) -> None:
        self.route = GenerationRoute(CHAT, parts.generation, parts.options)
        self._counting = CountRoute(CHAT.reader, parts.generation, lenient=parts.options.lenient)
        exchange = partial(ChatExchange, self.route)
        self._socket = SocketServer(exchange, parts.sockets, subprotocol=SUBPROTOCOL)

    @ApiRoute(
        "POST",
        "/v1/chat/completions",
        CALLS,
        "Generation",
        aliases=("/chat/completions",),  # of llama-server
        body=ChatBody,
        answer=ChatCompletion,
        streams=True,
        errors=GENERATION_ERRORS,
        batched=lambda at: at.route.answer,
    )
    async def create(self, request: Request) -> ASGIApp:
        """Answer a conversation, whole or as server-sent events."""
        return await self.route.create(request)

    @ApiRoute(WEBSOCKET, "/v1/chat/completions", INFERENCE, "Generation")
    async def socket(self, websocket: WebSocket) -> None:
        """Answer conversations over a WebSocket: one JSON object per message, many requests at once."""
        await self._socket.serve(websocket)

    @ApiRoute(
        "POST",
        "/v1/chat/completions/input_tokens",
        WORK,
        "Tokens",
        aliases=("/chat/completions/input_tokens",),
        body=ChatBody,
        answer=InputTokens,
        errors=(404,),
    )
    async def count(self, request: Request) -> Response:
        """Count the prompt tokens of a conversation."""
        return await self._counting.count(request)


ROOM = ApiRouter[AppState](ChatRoutes)
