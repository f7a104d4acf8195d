from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Sequence

from openai_cpu_server.api.generation import params
from openai_cpu_server.api.generation.sampling import sampling_param
from openai_cpu_server.api.generation.schema import LACKS
from openai_cpu_server.api.generation.to_params import adapted_names, any_object, reasoning_param, schema_form
from openai_cpu_server.api.ollama import schema
from openai_cpu_server.errors import missing, wrong
from openai_cpu_server.models.registry import Preset, PresetMessage
from openai_cpu_server.prompt.template import joined_texts, to_json

_LACKS = {params.AttachmentKind.PICTURE: LACKS["image"], params.AttachmentKind.SOUND: LACKS["audio"]}
_SOUND = re.compile(
    rb"RIFF....WAVE|ID3|\xff[\xe2-\xfb]|fLaC|OggS|#!AMR|\x1aE\xdf\xa3|....ftyp(?:M4[AB]|mp4|iso|3gp)",
    re.DOTALL,
)
"""First bytes of sounds, which Ollama's clients send as `images`."""


def ollama_chat_params(body: schema.OllamaChatBody) -> params.GenerationParams:
    messages = body.messages or []
    media = [
        item
        for index, message in enumerate(messages)
        for item in _attached(message.images, f"messages[{index}].images", is_last=index == len(messages) - 1)
    ]
    functions = tuple(
        params.FunctionParam(
            tool.function.name,
            f"tools[{index}].function",
            f"tools[{index}].function.parameters",
            tool.function.description,
            tool.function.parameters,
        )
        for index, tool in enumerate(body.tools or ())
    )
    conversation = params.ConversationParam(
        list(_messages(messages)), "messages", may_forget=body.truncate is not False
    )
    tools = params.ToolsParam(functions=functions) if functions else None
    return _params(body, conversation, tools=tools, media=media)


def ollama_generate_params(body: schema.OllamaGenerateBody) -> params.GenerationParams:
    prompt = body.prompt or ""
    if body.raw and body.system:
        raise wrong("'raw' and 'system' cannot be combined: a raw prompt is the whole prompt.", "system")
    template = body.template or ""
    if body.raw and template:
        raise wrong("'raw' and 'template' cannot be combined: a raw prompt is the whole prompt.", "template")
    context = tuple(body.context or ())
    if context and (body.raw or body.suffix):
        other = "raw" if body.raw else "suffix"
        raise wrong(f"'{other}' and 'context' cannot be combined: it is not a conversation.", "context")
    if body.suffix and body.images and template:
        raise wrong("'suffix' and 'images' cannot be combined: only text can be filled in.", "images")
    if body.suffix and not template:
        return _params(body, params.PromptsParam([prompt], suffix=body.suffix))
    if body.raw and body.images:
        raise wrong("'raw' and 'images' cannot be combined: a raw prompt is text.", "images")
    if body.raw or not (body.system or body.images or template):
        texts = params.PromptsParam([(*context, prompt) if context else prompt], is_user_message=not body.raw)
        return _params(body, texts, returns_context=texts.is_user_message)
    texts_by_role = [("system", body.system)] if body.system else []
    texts_by_role.append(("user", _with_marks(prompt, body.images)))
    messages = [
        params.MessageParam({"role": role, "content": text}, path=role) for role, text in texts_by_role
    ]
    media = list(_attached(body.images, "images", is_last=True))
    suffix = body.suffix or ""
    conversation = params.ConversationParam(
        messages, "prompt", before=context, template=template, suffix=suffix
    )
    # Pictures are not tokens, so the client could not send them again.
    return _params(body, conversation, media=media, returns_context=not (media or suffix))


def _params(
    body: schema.OllamaBody,
    prompt: params.ConversationParam | params.PromptsParam,
    *,
    tools: params.ToolsParam | None = None,
    media: Sequence[params.Attachment] = (),
    returns_context: bool = False,
) -> params.GenerationParams:
    options = body.options or schema.OllamaOptions()
    messages = prompt.messages if isinstance(prompt, params.ConversationParam) else ()
    stop, limit, max_tokens = options.stop or (), options.num_predict, None
    if limit is not None:
        max_tokens = params.LimitParam.ceiling(limit or -1, "options.num_predict")
    think = body.think
    thinking = reasoning_param(
        efforts=[("think", think)] if isinstance(think, str) else (),
        switches=[("think", think)] if isinstance(think, bool) else (),
    )
    return params.GenerationParams(
        id_prefix="ollama-",
        prompt=prompt,
        sampling=sampling_param(options, defaults=schema.OLLAMA_DEFAULTS),
        ignored=adapted_names((), messages),
        model=body.model,
        stream=body.stream is not False,
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_path="options.stop",
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=_form(body),
        tools=tools,
        thinking=thinking,
        attached=tuple(media),
        details=params.DetailsParam(progress=bool(body.return_progress), tokens=returns_context),
    )


def _form(body: schema.OllamaBody) -> params.FormParam | None:
    if body.format is None or body.format == "":
        return None
    if isinstance(body.format, dict):
        return schema_form(body.format, "format")
    if body.format != "json":
        raise wrong("Invalid value for 'format': expected 'json' or a JSON Schema.", "format")
    return any_object("format")


def _messages(messages: Sequence[schema.OllamaMessage]) -> Iterator[params.MessageParam]:
    """Match results to calls in order, because Ollama needs no ids."""
    open_calls: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        content = _with_marks(message.content, message.images)
        fields: dict[str, object] = {"role": message.role, "content": content}
        if message.thinking and message.role == "assistant":
            fields["reasoning_content"] = message.thinking
        if message.tool_calls:
            fields["tool_calls"] = _calls(message, index, open_calls)
        if message.role == "tool":
            fields["tool_call_id"] = message.tool_call_id or _answered(message.tool_name, open_calls, index)
        yield params.MessageParam(fields, path=f"messages[{index}]")


def _with_marks(text: str | None, images: Sequence[str] | None) -> str:
    """Put images before the text, as Ollama does."""
    marks = [_source(image).mark for image in images or ()]
    return joined_texts(filter(None, (*marks, text)))


def _attached(images: Sequence[str] | None, at: str, *, is_last: bool) -> Iterator[params.Attachment]:
    for number, image in enumerate(images or ()):
        source = _source(image)
        lack = _LACKS[source.kind]
        refusal = f"Invalid value for '{at}': {lack}." if is_last else None
        yield params.Attachment(source, f"{at}[{number}]", at, is_last, lack, refusal, at)


def _source(image: str) -> params.AttachmentSource:
    """Accept base64 alone, as Ollama's clients send it, and data URIs."""
    url = image if image[:5].lower() == "data:" else f"data:;base64,{image}"
    first = b""
    with contextlib.suppress(ValueError):
        first = base64.b64decode(url.partition(",")[2][:16], "-_")
    if _SOUND.match(first):
        return params.AttachmentSource(params.AttachmentKind.SOUND, url)
    return params.AttachmentSource(params.AttachmentKind.PICTURE, url, params.AUTO_DETAIL)


def _calls(
    message: schema.OllamaMessage, index: int, open_calls: list[tuple[str, str]]
) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    open_calls.clear()
    for at, call in enumerate(message.tool_calls or ()):
        key, name = call.id or f"call_{index}_{at}", call.function.name
        open_calls.append((key, name))
        function = {"name": name, "arguments": to_json(call.function.arguments or {})}
        made.append({"id": key, "type": "function", "function": function})
    return made


def _answered(name: str | None, open_calls: list[tuple[str, str]], index: int) -> str:
    """Prefer an open call of this function to any."""
    found = next((call for call in open_calls if name in (None, call[1])), None)
    if found is None:
        return f"result_{index}"
    open_calls.remove(found)
    return found[0]


def preset_of(body: schema.OllamaCreateBody) -> Preset:
    if body.base is None:
        raise missing("from")
    options = body.parameters or schema.OllamaOptions()
    if options.logit_bias:
        raise wrong("'logit_bias' is for requests, not for a model's parameters.", "parameters")
    messages = body.messages or ()
    for index, message in enumerate(messages):
        if message.images or message.tool_calls or message.role == "tool":
            raise wrong("A model's stored messages can contain text only.", f"messages[{index}]")
    sampling = sampling_param(options)
    numbers = {name: getattr(sampling.values, name) for name in sampling.sent if name != "logit_bias"}
    stop = options.stop or ()
    return Preset(
        base=body.base,
        system=body.system or "",
        template=body.template or "",
        messages=tuple(PresetMessage(message.role, message.content or "") for message in messages),
        parameters={name: number or 0 for name, number in numbers.items()},
        max_tokens=options.num_predict if options.num_predict and options.num_predict > 0 else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )
