"""Changes of the set of models: `/api/pull`, `/api/create`, `/api/copy`, `/api/delete` and blobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, ClassVar, NoReturn

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.admin.models import store_for, to_its_end
from openai_cpu_server.api.generation.body import ListOf, OpenBody
from openai_cpu_server.api.generation.route import while_connected
from openai_cpu_server.api.generation.sampling import sampling_of, sampling_sent
from openai_cpu_server.api.ollama.render import NDJSON, OLLAMA, SHAPE, JsonLines, OllamaError
from openai_cpu_server.api.ollama.schema import OllamaMessage, OllamaOptions
from openai_cpu_server.api.parts import AppState, ModelStore, chosen_model
from openai_cpu_server.contract.pull import PullStep
from openai_cpu_server.errors import InvalidRequest, missing, wrong
from openai_cpu_server.http.body import in_thread, unkept_body
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.ignored_params import Hints, IgnoredParam, Refusals, UnsupportedParam
from openai_cpu_server.http.keys import ADMIN
from openai_cpu_server.http.parse import parse
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.presets import Preset, PresetMessage

ModelName = Annotated[str, Field(min_length=1, max_length=512)]
_NO_FILES = "this server takes no files; pull a model of the hub, or name its file with --model"


class OllamaNamed(OpenBody):
    model: ModelName | None = None
    name: ModelName | None = None
    stream: bool | None = None
    """Streams if absent."""

    @property
    def model_name(self) -> str:
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
            shown = digest.removeprefix("sha256:")[:12]
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
    messages = body.messages or ()
    for index, message in enumerate(messages):
        if message.images or message.tool_calls or message.role == "tool":
            raise wrong("Messages that are kept have texts only.", f"messages[{index}]")
    sampling = sampling_of(options)
    numbers = {name: getattr(sampling, name) for name in sampling_sent(options) if name != "logit_bias"}
    stop = options.stop or ()
    return Preset(
        base=body.base,
        system=body.system or "",
        template=body.template or "",
        messages=tuple(PresetMessage(message.role, message.content or "") for message in messages),
        parameters={name: number for name, number in numbers.items() if number is not None},
        max_tokens=options.num_predict if options.num_predict and options.num_predict > 0 else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


async def _pull_lines(store: ModelStore, name: str) -> AsyncIterator[bytes]:
    async for step in store.pull(name):
        if (progress := progress_of(step)) is not None:
            yield msgspec.json.encode(progress) + b"\n"


_route = partial(ApiRoute, access=ADMIN, tag="Ollama", error=OllamaError)
_streamed = partial(
    _route,
    "POST",
    answer=OllamaProgress,
    streams=True,
    stream_form="Unless `stream` is false: an object on each line; the last one is `success` or an error.",
    stream_media=NDJSON,
)


class OllamaStoreRoutes:
    def __init__(self, parts: AppState) -> None:
        self._store = parts.store
        self._models = parts.models
        self._lenient = parts.options.lenient

    @_streamed(f"{OLLAMA}/pull", body=OllamaPullBody, errors=(404, 503))
    async def pull(self, request: Request) -> ASGIApp:
        """Download a model from the hub and serve it, under `--allow-pull`."""
        body, ignored = parse(OllamaPullBody, await unkept_body(request), lenient=self._lenient)
        store = store_for(self._store, body.model_name, request)
        if body.stream is not False:
            return JsonLines(_pull_lines(store, body.model_name), ignored.headers)
        await while_connected(request.receive, partial(to_its_end, store, body.model_name))
        return json_response(_DONE, headers=ignored.headers)

    @_streamed(f"{OLLAMA}/create", body=OllamaCreateBody, errors=(404,))
    async def create(self, request: Request) -> Response:
        """Create a name for a model with a system prompt, parameters and messages."""
        body, ignored = parse(OllamaCreateBody, await unkept_body(request), lenient=self._lenient)
        preset = preset_of(body)
        await self._derive(request, body.model_name, preset)
        if body.stream is False:
            return json_response(_DONE, headers=ignored.headers)
        return Response(msgspec.json.encode(_DONE) + b"\n", media_type=NDJSON, headers=ignored.headers)

    @_route("POST", f"{OLLAMA}/copy", body=OllamaCopyBody, errors=(404,))
    async def copy(self, request: Request) -> Response:
        """Give a model another name."""
        body, _ = parse(OllamaCopyBody, await unkept_body(request), lenient=self._lenient)
        await self._derive(request, body.destination, Preset(base=body.source))
        return Response()

    @_route("DELETE", f"{OLLAMA}/delete", body=OllamaNamed, errors=(404, 409))
    async def delete(self, request: Request) -> Response:
        """Remove a downloaded model and its files, or remove a name."""
        body, _ = parse(OllamaNamed, await unkept_body(request), lenient=self._lenient)
        await store_for(self._store, body.model_name, request).remove(body.model_name)
        return Response()

    @_route("GET", f"{OLLAMA}/blobs/{{digest}}")
    async def has_blob(self, request: Request) -> Response:
        """Answer 404, because the server stores no blobs."""
        return json_response(OllamaError(f"There is no blob '{request.path_params['digest']}'."), 404)

    @_route("POST", f"{OLLAMA}/blobs/{{digest}}", errors=(400,))
    async def take_blob(self, request: Request) -> NoReturn:
        """Reject uploads of blobs."""
        raise InvalidRequest(f"{_NO_FILES[:1].upper()}{_NO_FILES[1:]}.")

    @_route("POST", f"{OLLAMA}/push", errors=(400,))
    async def push(self, request: Request) -> NoReturn:
        """Reject uploads of models to a hub."""
        raise InvalidRequest("This server sends models nowhere.")

    async def _derive(self, request: Request, name: str, preset: Preset) -> None:
        store = store_for(self._store, name, request)
        base = (await chosen_model(self._models, request, preset.base)).model
        if preset.template:
            await in_thread(partial(base.write_template, preset.template, None, "", 0), is_slow=True)
        await store.derive(name, preset)


ROOM = ApiRouter[AppState](OllamaStoreRoutes, shape=SHAPE)
