"""The response object as it is before anything has come: what was asked for, with its defaults."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.calls.call import Call
from openai_cpu_server.api.render.responses.objects import ReasoningSettings, ResponseObject, TextSettings
from openai_cpu_server.api.resolve.call import served_tier
from openai_cpu_server.api.responses.as_ask import functions_of
from openai_cpu_server.api.schemas import responses as schema
from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.jobs.records import ResponseStatus

_TEXT = msgspec.Raw(b'{"type":"text"}')
_AUTO = msgspec.Raw(b'"auto"')


def new_response(
    body: schema.ResponsesBody, call: Call, status: ResponseStatus, *, is_stored: bool
) -> ResponseObject:
    return ResponseObject(
        id=call.id,
        created_at=call.created,
        status=status.value,
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=call.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=_reasoning(body.reasoning),
        safety_identifier=body.safety_identifier,
        service_tier=_tier(body.service_tier, call.priority),
        store=is_stored,
        temperature=1.0 if body.temperature is None else body.temperature,
        text=_text(body.text),
        tool_choice=_choice(body.tool_choice),
        tools=tuple(_function(tool) for _, tool in functions_of(body)),
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )


def _tier(asked: str | None, priority: Priority) -> str:
    return "default" if asked is None or asked == "auto" else served_tier(asked, priority)


def _reasoning(given: schema.ReasoningOptions | None) -> ReasoningSettings:
    if given is None:
        return ReasoningSettings()
    return ReasoningSettings(given.effort, given.summary or given.generate_summary)


def _text(given: schema.TextOptions | None) -> TextSettings:
    if given is None:
        return TextSettings(_TEXT)
    form = _TEXT if given.format is None else _raw(given.format)
    return TextSettings(form, given.verbosity or "medium")


def _choice(given: schema.ToolChoice | None) -> msgspec.Raw:
    if given is None:
        return _AUTO
    return msgspec.Raw(msgspec.json.encode(given)) if isinstance(given, str) else _raw(given)


def _function(tool: schema.FunctionTool) -> msgspec.Raw:
    """All of its fields, as clients' types demand."""
    fields = {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }
    return msgspec.Raw(msgspec.json.encode(fields))


def _raw(given: Body) -> msgspec.Raw:
    return msgspec.Raw(given.model_dump_json(by_alias=True, exclude_none=True).encode())
