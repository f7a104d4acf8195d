"""Changes of the set of models: `/api/pull`, `/api/create`, `/api/copy`, `/api/delete` and blobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, ClassVar, NoReturn

import msgspec
from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.admin.store import store_for, to_its_end
from openai_cpu_server.api.generation.route import NO_STORE_HEADERS, while_connected
from openai_cpu_server.api.generation.sampling import sampling_of, sampling_sent
from openai_cpu_server.api.generation.schema import ListOf, OpenBody
from openai_cpu_server.api.ollama.body import OllamaMessage, OllamaOptions
from openai_cpu_server.api.ollama.render import NDJSON, OLLAMA, SHAPE, OllamaError
from openai_cpu_server.api.parts import AppState, ModelStore
from openai_cpu_server.contract.pull import PullStep
from openai_cpu_server.errors import InvalidRequest, missing, wrong
from openai_cpu_server.http.body import in_thread, unkept_body
from openai_cpu_server.http.context import context_of, ticket_of
from openai_cpu_server.http.errors import error_object, json_response
from openai_cpu_server.http.ignored_params import Hints, IgnoredParam, Refusals, UnsupportedParam
from openai_cpu_server.http.keys import ADMIN
from openai_cpu_server.http.parse import Ignored, parse
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.presets import Preset, PresetMessage
from openai_cpu_server.models.registry import fetch

ModelName = Annotated[str, Field(min_length=1, max_length=512)]
_SHOWN_DIGITS = 12
_NO_FILES = "this server takes no files; pull a model of the hub, or name its file with --model"


class OllamaNamed(OpenBody):
    model: ModelName | None = None
    name: ModelName | None = None
    stream: bool | None = None
    """Streams if absent."""

    @property
    def asked(self) -> str:
        name = self.model or self.name
        if name is None:
            raise missing("model")
        return name


class OllamaPullBody(OllamaNamed):
    hints: ClassVar[Hints] = {"insecure": IgnoredParam("the hub is the one that HF_ENDPOINT names", (False,))}


class OllamaCreateBody(OllamaNamed):
    hints: ClassVar[Hints] = {"license": IgnoredParam("it is that of the model")}
    refusals: ClassVar[Refusals] = {
        "files": UnsupportedParam(_NO_FILES, ({},)),
        "adapters": UnsupportedParam("load it with POST /v1/adapters", ({},)),
        "quantize": UnsupportedParam("the command `openai-cpu-server quantize` writes smaller files", ("",)),
        "modelfile": UnsupportedParam(
            "send 'from', 'system', 'template', 'parameters', 'messages' instead", ("",)
        ),
    }

    base: Annotated[ModelName | None, Field(alias="from")] = None
    system: str | None = None
    template: str | None = None
    """Ollama template of prompts, or the model's own if absent."""
    parameters: OllamaOptions | None = None
    messages: ListOf[OllamaMessage] | None = None


class OllamaCopyBody(OpenBody):
    source: ModelName
    destination: ModelName


class OllamaProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    digest: str = ""
    total: int = 0
    completed: int | msgspec.UnsetType = msgspec.UNSET


_DONE = OllamaProgress("success")


def progress_of(step: PullStep) -> OllamaProgress | None:
    match step:
        case PullStep(status="asking"):
            return OllamaProgress("pulling manifest")
        case PullStep(status="pulling", digest=str(digest)):
            shown = digest.removeprefix("sha256:")[:_SHOWN_DIGITS]
            completed = step.completed or 0
            return OllamaProgress(f"pulling {shown}", digest, step.total or 0, completed)
        case PullStep(status="verifying"):
            return OllamaProgress("verifying sha256 digest")
        case PullStep(status="success"):
            return _DONE
    return None


def preset_of(body: OllamaCreateBody) -> Preset:
    """Convert the body to a preset. Raises InvalidRequest."""
    if body.base is None:
        raise missing("from")
    options = body.parameters or OllamaOptions()
    if options.logit_bias:
        raise wrong("'logit_bias' is for requests: it has no place in a model's parameters.", "parameters")
    sampling = sampling_of(options)
    numbers = {name: getattr(sampling, name) for name in sampling_sent(options) if name != "logit_bias"}
    stop = options.stop or ()
    return Preset(
        base=body.base,
        system=body.system or "",
        template=body.template or "",
        messages=tuple(_message(message, index) for index, message in enumerate(body.messages or ())),
        parameters={name: number for name, number in numbers.items() if number is not None},
        max_tokens=options.num_predict if options.num_predict and options.num_predict > 0 else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _message(message: OllamaMessage, index: int) -> PresetMessage:
    if message.images or message.tool_calls or message.role == "tool":
        raise wrong("Messages that are kept have texts only.", f"messages[{index}]")
    return PresetMessage(message.role, message.content or "")


class ProgressLines:
    """Response of a streaming pull. The pull ends with it, unless another client follows it."""

    def __init__(self, store: ModelStore, name: str, ignored: Ignored) -> None:
        self._store = store
        self._name = name
        self._ignored = ignored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, partial(self._send, scope, send))
        except (ClientDisconnect, OSError):
            ticket_of(scope).client_gone()

    async def _send(self, scope: Scope, send: Send) -> None:
        headers = {**NO_STORE_HEADERS, **self._ignored.headers, "content-type": NDJSON}
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        async for line in self._lines(scope):
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _lines(self, scope: Scope) -> AsyncIterator[bytes]:
        """Report an error in the last line, because the status is already sent."""
        try:
            async for step in self._store.pull(self._name):
                if (told := progress_of(step)) is not None:
                    yield msgspec.json.encode(told) + b"\n"
        except Exception as error:
            ticket = ticket_of(scope)
            ticket.failed(error)
            said = error_object(error, request_id=ticket.id).error.message
            yield msgspec.json.encode(OllamaError(said)) + b"\n"


class OllamaStoreRoutes:
    def __init__(self, parts: AppState) -> None:
        self._store = parts.store
        self._models = parts.models
        self._lenient = parts.options.lenient

    async def pull(self, request: Request) -> ASGIApp:
        body, ignored = parse(OllamaPullBody, await unkept_body(request), lenient=self._lenient)
        store = store_for(self._store, body.asked, request)
        if body.stream is not False:
            return ProgressLines(store, body.asked, ignored)
        await while_connected(request.receive, partial(to_its_end, store, body.asked))
        return json_response(_DONE, headers=ignored.headers)

    async def create(self, request: Request) -> Response:
        body, ignored = parse(OllamaCreateBody, await unkept_body(request), lenient=self._lenient)
        preset = preset_of(body)
        await self._derive(request, body.asked, preset)
        if body.stream is False:
            return json_response(_DONE, headers=ignored.headers)
        return Response(msgspec.json.encode(_DONE) + b"\n", media_type=NDJSON, headers=ignored.headers)

    async def copy(self, request: Request) -> Response:
        body, _ = parse(OllamaCopyBody, await unkept_body(request), lenient=self._lenient)
        await self._derive(request, body.destination, Preset(base=body.source))
        return Response()

    async def delete(self, request: Request) -> Response:
        body, _ = parse(OllamaNamed, await unkept_body(request), lenient=self._lenient)
        await store_for(self._store, body.asked, request).remove(body.asked)
        return Response()

    async def has_blob(self, request: Request) -> Response:
        return json_response(OllamaError(f"There is no blob '{request.path_params['digest']}'."), 404)

    async def take_blob(self, request: Request) -> NoReturn:
        raise InvalidRequest(f"{_NO_FILES[:1].upper()}{_NO_FILES[1:]}.")

    async def push(self, request: Request) -> NoReturn:
        raise InvalidRequest("This server sends models nowhere.")

    async def _derive(self, request: Request, name: str, preset: Preset) -> None:
        store = store_for(self._store, name, request)
        allowed = context_of(request.scope).identity.allowed_models
        await fetch(self._models, preset.base, allowed)
        base = self._models.choose(preset.base, allowed).model
        if preset.template:
            await in_thread(partial(base.write_template, preset.template, None, "", 0), is_slow=True)
        await store.derive(name, preset)


_row = partial(ApiRoute[OllamaStoreRoutes], access=ADMIN, tag="Ollama", error=OllamaError)
_LINES = "Unless `stream` is false: an object on each line; the last one is `success` or an error."
_rows = (
    _row(
        "POST",
        f"{OLLAMA}/pull",
        lambda at: at.pull,
        summary="Fetch a model from the hub and serve it, under `--allow-pull`",
        body=OllamaPullBody,
        answer=OllamaProgress,
        streams=True,
        stream_form=_LINES,
        stream_media=NDJSON,
        errors=(404, 503),
    ),
    _row(
        "POST",
        f"{OLLAMA}/create",
        lambda at: at.create,
        summary="Make a name of a model: with a system prompt, parameters and messages",
        body=OllamaCreateBody,
        answer=OllamaProgress,
        streams=True,
        stream_form=_LINES,
        stream_media=NDJSON,
        errors=(404,),
    ),
    _row(
        "POST",
        f"{OLLAMA}/copy",
        lambda at: at.copy,
        summary="A further name of a model",
        body=OllamaCopyBody,
        errors=(404,),
    ),
    _row(
        "DELETE",
        f"{OLLAMA}/delete",
        lambda at: at.delete,
        summary="Serve a model that was pulled no more, and remove its files; or forget a name",
        body=OllamaNamed,
        errors=(404, 409),
    ),
    _row("GET", f"{OLLAMA}/blobs/{{digest}}", lambda at: at.has_blob, summary="There are none: 404"),
    _row(
        "POST",
        f"{OLLAMA}/blobs/{{digest}}",
        lambda at: at.take_blob,
        summary="Refused: 400",
        errors=(400,),
    ),
    _row("POST", f"{OLLAMA}/push", lambda at: at.push, summary="Refused: 400", errors=(400,)),
)
ROOM = ApiRouter[AppState, OllamaStoreRoutes](OllamaStoreRoutes, _rows, shape=SHAPE)
