"""Routes of transcriptions and translations."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.params import GenerationParams
from openai_cpu_server.api.generation.route import EventStream, while_connected, whole_answer
from openai_cpu_server.api.state import AppState
from openai_cpu_server.api.transcriptions import render
from openai_cpu_server.api.transcriptions.schema import RecordingBody
from openai_cpu_server.api.transcriptions.to_params import recording_params
from openai_cpu_server.errors import missing, unknown_parameter, wrong_value
from openai_cpu_server.http.body import form_of
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.parse import parse_form
from openai_cpu_server.http.routes import ApiRouter, model_route

_MOST_FIELDS = 128
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
