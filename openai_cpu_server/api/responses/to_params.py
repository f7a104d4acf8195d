from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from pydantic import JsonValue

from openai_cpu_server.api.generation.output import check_no_choice
from openai_cpu_server.api.generation.params import (
    AttachmentKind,
    AttachmentSource,
    ConversationParam,
    FormParam,
    FunctionParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.api.generation.schema import ForeignKind, source_in, words_in
from openai_cpu_server.api.generation.to_params import (
    any_object,
    check_stream_options,
    custom_tool,
    one_form,
    reasoning_param,
    schema_form,
    sent_fields,
    shared_forms,
    shared_params,
)
from openai_cpu_server.api.responses import items, schema
from openai_cpu_server.api.responses.conversation import trigger_item
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.errors import InvalidRequest, missing, wrong, wrong_value
from openai_cpu_server.prompt.template import to_json

LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
    }
)
"""OpenAI's values. Only the first has an effect: others need missing tools, or are shown anyway."""
_TIERS = {"fast": "priority", "priority": "priority", "flex": "flex"}
_PATH = "input"


def _places(
    body: ResponsesBody,
) -> Iterator[tuple[str, str, schema.FunctionTool | schema.TextTool | ForeignKind]]:
    for index, tool in enumerate(body.tools or ()):
        at = f"tools[{index}]"
        if isinstance(tool, schema.NamespaceTool):
            yield from (
                (f"{at}.tools[{i}]", f"{tool.name}{items.IN_NAMESPACE}", x) for i, x in enumerate(tool.tools)
            )
        elif not isinstance(tool, schema.McpServerTool):
            yield at, "", tool


def ignored_tools(body: ResponsesBody) -> list[str]:
    return [tool.named(at) for at, _, tool in _places(body) if isinstance(tool, ForeignKind)]


def check_supported(body: ResponsesBody) -> None:
    for index, wanted in enumerate(body.include or ()):
        if wanted not in _INCLUDABLE:
            values = ", ".join(f"'{name}'" for name in sorted(_INCLUDABLE))
            raise wrong_value(f"include[{index}]", f"one of {values}")
    check_stream_options(body.stream_options, stream=body.stream)
    _check_whole(body.input)


def to_params(
    body: ResponsesBody, messages: Sequence[MessageParam], offered: Sequence[FunctionParam] = ()
) -> GenerationParams:
    """`messages`: instructions, earlier turns and this one. Raises InvalidRequest."""
    if not messages:
        raise wrong("'input' has no item of a supported type.", _PATH) if body.input else missing(_PATH)
    conversation = ConversationParam(messages, _PATH, may_forget=body.truncation == "auto")
    params = shared_params(
        body, conversation, id_prefix="resp_", form=None if body.is_compacting else one_form(_forms(body))
    )
    has_scores = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    limit = body.max_output_tokens
    return msgspec.structs.replace(
        params,
        service_tier=_TIERS.get(body.service_tier or ""),
        max_tokens=None if limit is None else LimitParam(limit, "max_output_tokens"),
        logprobs=(body.top_logprobs or 0) if has_scores else None,
        tools=_tools(body, offered),
        thinking=reasoning_param(
            efforts=sent_fields(body, "reasoning.effort"),
            switches=sent_fields(body, "enable_thinking"),
            budgets=sent_fields(body, "thinking_budget"),
            variables=body.chat_template_kwargs,
        ),
        template=body.chat_template,
    )


def _forms(body: ResponsesBody) -> Iterator[FormParam]:
    form, at = None if body.text is None else body.text.format, "text.format"
    if form is not None and form.type == "json_object":
        yield any_object(at)
    if form is not None and form.type == "json_schema":
        if form.name is None:
            raise missing(f"{at}.name")
        if form.json_schema is None:
            raise missing(f"{at}.schema")
        yield schema_form(form.json_schema, f"{at}.schema", strict=form.strict is not False, field=at)
    yield from shared_forms(body)


def _tools(body: ResponsesBody, offered: Sequence[FunctionParam]) -> ToolsParam | None:
    places = _places(body)
    functions = [_function(tool, at, stem) for at, stem, tool in places if not isinstance(tool, ForeignKind)]
    functions += offered
    if not functions:
        check_no_choice(body.tool_choice, without="tools", path="tool_choice")
        return None
    use, chosen = _choice(body, [each.name for each in functions])
    if body.is_compacting:
        return ToolsParam(functions=tuple(functions), use=None, is_shown=True)
    several = body.parallel_tool_calls is not False
    return ToolsParam(functions=tuple(functions), use=use, chosen=chosen, several=several)


def _choice(body: ResponsesBody, all_names: Sequence[str]) -> tuple[ToolUse | None, tuple[str, ...] | None]:
    match body.tool_choice:
        case schema.NamedFunction(name=name, namespace=namespace):
            return ToolUse.NAMED, (_meant(name, namespace, all_names),)
        case schema.NamedMcpTool(server_label=label, name=str(name)):
            return ToolUse.NAMED, (label + items.IN_NAMESPACE + items.named_for_models(name),)
        case schema.NamedMcpTool(server_label=label):
            names = _below(label, all_names)
            if not names:
                raise wrong(
                    f"The request has no tools of an MCP server '{label}'.", "tool_choice.server_label"
                )
            return ToolUse.REQUIRED, tuple(names)
        case schema.AllowedToolsChoice(mode=mode, tools=tools):
            return ToolUse(mode), _allowed(tools, all_names)
        case "none":
            return None, None
        case "required":
            return ToolUse.REQUIRED, None
        case _:
            return ToolUse.AUTO, None


def _meant(name: str, namespace: object, all_names: Sequence[str]) -> str:
    """A namespace may be omitted before a unique name."""
    if isinstance(namespace, str):
        return namespace + items.IN_NAMESPACE + name
    found = [each for each in all_names if each.rpartition(items.IN_NAMESPACE)[2] == name]
    return found[0] if len(found) == 1 else name


def _allowed(tools: Sequence[Mapping[str, JsonValue]], all_names: Sequence[str]) -> tuple[str, ...]:
    """Leave out unsupported tools. A namespace stands for all of its tools."""
    named: list[str] = []
    for tool in tools:
        name = tool.get("name")
        if tool.get("type") == "namespace":
            named += _below(name, all_names)
        elif tool.get("type") == "mcp":
            label = tool.get("server_label")
            named += (
                [f"{label}{items.IN_NAMESPACE}{items.named_for_models(name)}"]
                if isinstance(name, str)
                else _below(label, all_names)
            )
        elif tool.get("type") in ("function", "custom") and isinstance(name, str):
            named.append(_meant(name, tool.get("namespace"), all_names))
    if not named:
        raise wrong("'tool_choice.tools' names no function.", "tool_choice.tools")
    return tuple(named)


def _below(stem: object, all_names: Sequence[str]) -> list[str]:
    return [each for each in all_names if each.startswith(f"{stem}{items.IN_NAMESPACE}")]


def _function(tool: schema.FunctionTool | schema.TextTool, path: str, stem: str) -> FunctionParam:
    name = stem + tool.name
    if isinstance(tool, schema.TextTool):
        grammar = tool.format if isinstance(tool.format, schema.GrammarFormat) else None
        return custom_tool(name, tool.description, grammar, path, f"{path}.format")
    at = f"{path}.parameters"
    return FunctionParam(name, path, at, tool.description, tool.parameters, is_strict=bool(tool.strict))


_CALL, _OUTPUT = "_call", "_call_output"
_CALL_FIELDS = ("input", "action", "operation", "arguments", "code", "queries")


def new_items(
    sent: str | Sequence[schema.InputItem] | None, referenced: Mapping[str, items.Item]
) -> list[items.ItemWithSource]:
    """`referenced`: items by id. Raises InvalidRequest."""
    if isinstance(sent, str):
        text = (items.InputText(sent),)
        return [
            items.ItemWithSource(
                items.MessageItem(id=items.new_item_id(items.MessageItem), role="user", content=text), "input"
            )
        ]
    return [
        items.ItemWithSource(item, param)
        for param, one in ((f"input[{index}]", one) for index, one in enumerate(sent or ()))
        for item in (_foreign(one) if isinstance(one, ForeignKind) else [_item(one, param, referenced)])
    ]


def unsupported_names(sent: str | Sequence[schema.InputItem] | None) -> list[str]:
    names: list[str] = []
    for index, one in enumerate(() if sent is None or isinstance(sent, str) else sent):
        field = "output" if isinstance(one, schema.SentOutputItem) else "content"
        content = getattr(one, field, None)
        parts = content if isinstance(content, list) else ()
        kinds = [
            (one, f"input[{index}]"),
            *((part, f"input[{index}].{field}[{at}]") for at, part in enumerate(parts)),
        ]
        foreign = [(kind, at) for kind, at in kinds if isinstance(kind, ForeignKind)]
        names += [part.named(at) for part, at in foreign if not _is_medium(part.attachment)]
    return names


def _check_whole(sent: str | Sequence[schema.InputItem] | None) -> None:
    last = None if not sent or isinstance(sent, str) else sent[-1]
    content = getattr(last, "content", None)
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, ForeignKind) and part.emptiness is not None:
            at = f"input[{len(sent or ()) - 1}].content[{number}]"
            raise wrong(f"'{at}': {part.emptiness}.", at)


def _is_medium(source: AttachmentSource | None) -> bool:
    return source is not None and source.kind is not AttachmentKind.DOCUMENT


def references(sent: str | Sequence[schema.InputItem] | None) -> list[str]:
    if sent is None or isinstance(sent, str):
        return []
    return [one.id for one in sent if isinstance(one, schema.ItemReference)]


def _foreign(sent: ForeignKind) -> list[items.Item]:
    """Calls of other tools become function calls, those that a service made become text, others are
    dropped."""
    fields, kind = sent.fields, sent.type
    call_id = fields.get("call_id", fields.get("id") if kind.endswith(_OUTPUT) else None)
    if kind.endswith(_OUTPUT) and isinstance(call_id, str):
        item_id = items.new_item_id(items.FunctionCallOutputItem)
        seen = source_in(fields.get("output"))  # a screenshot of a computer
        output = sent.text() if seen is None else (items.InputImage.of(seen),)
        return [items.FunctionCallOutputItem(id=item_id, call_id=call_id, output=output)]
    if not kind.endswith(_CALL):
        return []
    name = str(fields.get("name") or kind.removesuffix(_CALL))
    arguments = to_json({field: fields[field] for field in _CALL_FIELDS if fields.get(field)})
    if isinstance(call_id, str):
        item_id = items.new_item_id(items.FunctionCallItem)
        return [items.FunctionCallItem(id=item_id, call_id=call_id, name=name, arguments=arguments)]
    text = "\n".join(filter(None, (f"[{name}: {arguments}]", words_in(fields))))
    return [
        items.MessageItem(
            id=items.new_item_id(items.MessageItem), role="assistant", content=(items.OutputText(text),)
        )
    ]


def _item(sent: schema.InputItem, param: str, referenced: Mapping[str, items.Item]) -> items.Item:
    """Same-named fields have the same value, except those converted here."""
    match sent:
        case schema.CompactionTrigger():
            return trigger_item()
        case schema.ItemReference(id=item_id):
            if item_id not in referenced:
                message = f"Item with id '{item_id}' not found."
                raise InvalidRequest(message, param=f"{param}.id", code="item_not_found")
            return referenced[item_id]
    assert not isinstance(sent, ForeignKind), "the caller converts these"
    kind = items.BY_TYPE[sent.type or "message"]
    fields: dict[str, Any] = {
        name: getattr(sent, name) for name in kind.__struct_fields__ if name in type(sent).model_fields
    }
    fields["id"] = sent.id or items.new_item_id(kind)
    match sent:
        case schema.SentMessageItem():
            content = [sent.content] if isinstance(sent.content, str) else sent.content
            fields["content"] = _parts(content, is_output=sent.role == "assistant")
        case schema.SentCallItem():
            fields["namespace"] = sent.namespace or UNSET
        case schema.SentOutputItem() if not isinstance(sent.output, str):
            fields["output"] = _parts(sent.output, is_output=False)
        case schema.SentReasoning():
            fields["summary"] = tuple(items.SummaryText(part.text) for part in sent.summary or ())
            fields["content"] = tuple(items.ReasoningText(part.text) for part in sent.content or ())
            fields["encrypted_content"] = None
        case schema.SentMcpList():
            fields["tools"] = tuple(dict(tool) for tool in sent.tools or ())
    if not isinstance(fields.get("error"), (str, type(None))):
        fields["error"] = to_json(fields["error"])  # OpenAI's own servers send objects
    return kind(**fields)


def _parts(sent: Sequence[str | schema.SentPart], *, is_output: bool) -> tuple[items.ContentPart, ...]:
    kind = items.OutputText if is_output else items.InputText
    parts: list[items.ContentPart] = []
    for one in sent:
        match one:
            case str():
                parts.append(kind(one))
            case schema.ItemTextPart():
                parts.append(kind(one.text))
            case schema.RefusalPart():
                parts.append(items.RefusalText(one.refusal))
            case ForeignKind(attachment=AttachmentSource(kind=AttachmentKind.DOCUMENT) as document):
                parts.append(items.InputFile.of(document))
            case ForeignKind(attachment=AttachmentSource(kind=AttachmentKind.PICTURE) as picture):
                parts.append(items.InputImage.of(picture))
            case ForeignKind(attachment=AttachmentSource() as sound):
                parts.append(items.InputAudio.of(sound, one.fields.get("input_audio")))
            case ForeignKind():
                parts.append(kind(one.text()))
    return tuple(parts)
