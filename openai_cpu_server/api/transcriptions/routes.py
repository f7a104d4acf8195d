"""Form of a recording, its conversion to a `GenerationParams`, and the routes."""

from __future__ import annotations

import contextlib
import json
import re
from functools import partial
from typing import Annotated, ClassVar, Literal, Union

import msgspec
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.params import (
    AttachmentKind,
    ConversationParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    ReasoningParam,
    RecordingParam,
    mark_of,
)
from openai_cpu_server.api.generation.route import EventStream, while_connected, whole_answer
from openai_cpu_server.api.generation.schema import OutputLimit, SharedBody
from openai_cpu_server.api.generation.to_params import one_form, shared_forms, shared_params
from openai_cpu_server.api.state import AppState
from openai_cpu_server.api.transcriptions import render
from openai_cpu_server.errors import missing, unknown_parameter, wrong, wrong_value
from openai_cpu_server.http.body import form_of
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.ignored_params import (
    TIER_IGNORED,
    TRANSCRIPTION_UNSUPPORTED,
    IgnoredParams,
    UnsupportedParams,
)
from openai_cpu_server.http.parse import parse_form
from openai_cpu_server.http.routes import ApiRouter, model_route

_PIECE_S = 29.9
"""Whisper's encoders take 30 seconds, but at exactly 30 they add a second part of silence."""
_PIECE_TOKENS = 1024
"""Default for a piece, five times the speech it can hold, because some models repeat themselves endlessly."""
_MOST_FIELDS = 128
_WORDS = {
    "transcribe": "Write down what is said in this recording, word for word, in the language that is spoken. "
    "Answer with these words alone.",
    "translate": "Translate what is said in this recording into English. Answer with the translation alone.",
}
_TRAINED = {"lfm2": "Perform ASR."}
"""System message for transcription by architecture, as in llama-server, without other instructions."""


def _no_words(granularities: list[str]) -> list[str]:
    if "word" in granularities:
        raise PydanticCustomError("words", "Input should be 'segment': the times of words are not known")
    return granularities


def _no_tuning(strategy: object) -> object:
    strategy = _from_json(strategy)
    if isinstance(strategy, dict) and strategy.keys() - {"type"}:
        raise PydanticCustomError(
            "tuning", "Input should be 'auto': a recording is always split at quiet places"
        )
    return strategy["type"] if isinstance(strategy, dict) and "type" in strategy else strategy


def _from_json(value: object) -> object:
    """Return an object or a list that a form has as JSON, or anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value := _from_json(value), str) else value


def _language(value: object) -> object:
    """Return a tag of BCP 47 or a name; phones and POSIX write `pt_BR.UTF-8`. Some clients send a word for
    no language."""
    if not isinstance(value, str):
        return value
    tag = re.split("[.@]", value.strip())[0].replace("_", "-")
    return None if tag.lower() in _NO_LANGUAGES else tag


_NO_LANGUAGES = ("", "auto", "detect", "multi", "none", "null", "und", "undefined")
_AsList = BeforeValidator(_listed)
"""OpenAI's SDKs write brackets after the name."""
_Phrase = Annotated[str, Field(min_length=1, max_length=256)]
_Language = Annotated[str, Field(pattern=r"^[^\W\d_][\w ()'-]{1,63}$")]
_LanguageOrNone = Annotated[Union[_Language, None], BeforeValidator(_language)]
_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}


class RecordingBody(SharedBody):
    """Fields of the form. OpenAI accepts some of them for transcriptions only."""

    ignored: ClassVar[IgnoredParams] = TIER_IGNORED
    unsupported: ClassVar[UnsupportedParams] = TRANSCRIPTION_UNSUPPORTED

    file: Annotated[str, WithJsonSchema(_FILE)]
    """File name; the content is separate."""
    language: _LanguageOrNone = None
    """Spoken language, as a tag of BCP 47 or a name. `auto` is the same as none."""
    languages: Annotated[list[_LanguageOrNone], Field(max_length=16), _AsList] | None = None
    prompt: Annotated[str, Field(max_length=16_384)] | None = None
    keywords: Annotated[list[_Phrase], Field(max_length=256), _AsList] | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] | None = None
    timestamp_granularities: (
        Annotated[list[Literal["segment", "word"]], Field(max_length=2), _AsList, BeforeValidator(_no_words)]
        | None
    ) = None
    include: Annotated[list[Literal["logprobs"]], Field(max_length=1), _AsList] | None = None
    chunking_strategy: Annotated[Literal["auto", "server_vad"], BeforeValidator(_no_tuning)] | None = None
    max_completion_tokens: OutputLimit = None
    """vLLM's limit for each piece."""
    max_tokens: OutputLimit = None

    @property
    def form(self) -> str:
        return self.response_format or "json"


def recording_params(body: RecordingBody, data: bytes, task: str) -> GenerationParams:
    _check_together(body)
    mark = mark_of(AttachmentKind.SOUND, body.file, str(len(data)))
    languages = ", ".join(filter(None, (body.language, *(body.languages or ()))))
    hints = [
        *([f"Language: {languages}."] if languages else ()),
        *([f"Words that may occur: {', '.join(body.keywords)}."] if body.keywords else ()),
        *([f"What was said before, or is known about it: {body.prompt}"] if body.prompt else ()),
    ]
    prompt = ConversationParam([_message("user", mark, "\n".join((_WORDS[task], *hints)))], "file")
    trained = {
        architecture: (_message("system", words), _message("user", mark, *hints))
        for architecture, words in _TRAINED.items()
        if task == "transcribe"
    }
    params = shared_params(body, prompt, id_prefix="transcribe-", form=one_form(shared_forms(body)))
    limit = body.max_completion_tokens or body.max_tokens
    return msgspec.structs.replace(
        params,
        sampling=msgspec.structs.replace(params.sampling, temperature=body.temperature or 0.0),
        sent=params.sent | {"temperature"},
        recording=RecordingParam(mark, data, "file", _PIECE_S, trained),
        max_tokens=LimitParam(
            limit or _PIECE_TOKENS, "max_completion_tokens", is_ceiling=True, is_unlimited=limit is None
        ),
        thinking=ReasoningParam(is_on=False, is_hidden=True),
        logprobs=0 if body.form == "verbose_json" or body.include else None,
        num_bytes=len(data),
    )


def _check_together(body: RecordingBody) -> None:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise wrong("'max_tokens' and 'max_completion_tokens' name the same limit but differ.", "max_tokens")
    if body.timestamp_granularities and body.form != "verbose_json":
        name = "timestamp_granularities"
        raise wrong(f"'{name}' is only allowed with the response_format 'verbose_json'.", name)
    if body.include and body.form != "json":
        raise wrong("'include' is only allowed with the response_format 'json'.", "include")
    if body.stream and body.form not in ("json", "text"):
        message = f"'{body.form}' cannot be streamed, because events contain only the text."
        raise wrong(message, "response_format")


def _message(role: str, *texts: str) -> MessageParam:
    content = [{"type": "text", "text": text} for text in texts]
    return MessageParam({"role": role, "content": content}, path="prompt")


_EVENTS = (
    "With `stream`: `data: ` and an object of the type `transcript.text.delta`, an empty line, and so on; "
    "the last is `transcript.text.done`, then `data: [DONE]`."
)
_route = partial(
    model_route,
    tag="Generation",
    body=RecordingBody,
    body_media="multipart/form-data",
    answer=(render.Transcript, render.VerboseTranscript),
    events=(render.TranscriptDelta, render.TranscriptDone),
    stream_form=_EVENTS,
)


class RecordingRoutes:
    def __init__(self, state: AppState) -> None:
        self._service = state.generation
        self._options = state.options

    @_route("/v1/audio/transcriptions", aliases=("/audio/transcriptions",))
    async def transcribe(self, request: Request) -> ASGIApp:
        """Transcribe a recording, whole or as server-sent events."""
        return await self._answered(request, "transcribe")

    @_route("/v1/audio/translations")
    async def translate(self, request: Request) -> ASGIApp:
        """Translate a recording into English."""
        return await self._answered(request, "translate")

    async def _answered(self, request: Request, task: str) -> ASGIApp:
        params, renderer = await self._read(request, task)
        context, disconnect_guard = context_of(request.scope), partial(while_connected, request.receive)
        running = await self._service.begin(params, context, CascadeAttempt(disconnect_guard))
        del params
        context.body.release()
        if running.call.stream:
            stream = renderer.stream(running.call, running.model.pieces)
            return EventStream(running, stream, keep_alive_s=self._options.keep_alive_s)
        body = await whole_answer(running, renderer, disconnect_guard)
        return Response(body, media_type=renderer.media_type, headers=dict(running.headers))

    async def _read(self, request: Request, task: str) -> tuple[GenerationParams, render.TranscriptRenderer]:
        async with form_of(request, most_fields=_MOST_FIELDS) as form:
            upload, fields = form.get("file"), list[tuple[str, str]]()
            for name, value in form.multi_items():
                if isinstance(value, str):
                    fields.append((name, value))
                elif name != "file":
                    raise unknown_parameter(name)
            if upload is None:
                raise missing("file")
            if not isinstance(upload, UploadFile):
                raise wrong_value("file", "an upload, with a name")
            fields.append(("file", (upload.filename or "").strip() or "file"))
            data = await upload.read()
        body, ignored = parse_form(RecordingBody, fields, lenient=self._options.lenient)
        params = msgspec.structs.replace(recording_params(body, data, task), ignored=ignored)
        renderer = render.TranscriptRenderer(
            body.form, task, body.language, body.temperature or 0.0, shows_logprobs=bool(body.include)
        )
        return params, renderer


ROUTER = ApiRouter[AppState](RecordingRoutes)
