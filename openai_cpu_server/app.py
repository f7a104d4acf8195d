"""Wires the layers together and runs them: model, tokenizer, template, engine, API, web server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import psutil
import uvicorn

from openai_cpu_server.api.access.identity import key_identity
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.meter import Meter
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.gates.entrance import EXCESS_CONNECTION
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.resolve.call import cache_namespace
from openai_cpu_server.contract.adapter import Adapter
from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind, Tokenizer
from openai_cpu_server.dispatch.dispatcher import Dispatcher
from openai_cpu_server.dispatch.hang_detector import HangLimits
from openai_cpu_server.dispatch.observer import EngineObserver
from openai_cpu_server.dispatch.supervisor import Supervisor
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.options import JobOptions
from openai_cpu_server.jobs.run.rows import RunRow
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.kind import model_kind
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.measure.profile import load_profile
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.model_source import AdapterFiles, FoundModel, model_to_serve, resolve_model
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.observe.tracing import open_tracing
from openai_cpu_server.observe.watch import Watch
from openai_cpu_server.prompt.chat import needs_special_tokens
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, ToolFormat, format_for
from openai_cpu_server.settings import Settings, revealed, tune_engines, user_data_dir
from openai_cpu_server.structured import Whitespace
from openai_cpu_server.web.connection import ConnectionLimits, limited_connection, limited_socket
from openai_cpu_server.web.hangup import Hangup
from openai_cpu_server.web.open_files import room_for_connections
from openai_cpu_server.web.server import WebServer

logger = logging.getLogger(__name__)

_ENGINE_COMMAND = (
    sys.executable,
    *("-m", "openai_cpu_server.kernels.front"),
    "openai_cpu_server.engine.process",
)
_CLOSE_CONNECTIONS_S = 1
"""After Ctrl-C connections get this time to send their last bytes."""
_MIB = 1024 * 1024


def serve(settings: Settings) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises StartupError with one line if that cannot begin."""
    hangup = Hangup()
    set_up_logs(settings.log_level, settings.log_format)
    keys, limits = _keys(settings), RateLimits(Meter.open(revealed(settings.limits_url)))
    model = found_model(settings)
    name = model.name
    with _listen(settings.host, settings.port) as listener, Vocabulary.open(model.path) as vocabulary:
        tracing = open_tracing(settings.traces_endpoint) if settings.traces_endpoint else None
        watch = Watch.new(model=name, tracing=tracing)
        engine = _engine(settings, model, vocabulary, watch)
        jobs = _jobs(settings, name)
        models = ModelRegistry([_served(settings, model, engine, vocabulary)])
        options = _api_options(settings)
        find_adapter = _adapter_files(settings).of_client
        api = create_api(
            models, options, keys=keys, limits=limits, jobs=jobs, watch=watch, find_adapter=find_adapter
        )
        config = _web_config(settings, api.app)
        started = time.monotonic()
        try:
            working = _working(jobs, api.run_row)
            server = WebServer(
                config,
                engine,
                drain_s=settings.drain_seconds,
                checkpoint=jobs.stop if jobs else _no_checkpoint,
            )
            asyncio.run(_run(server, engine, listener, hangup, keys, working))
        finally:
            _log_totals(engine, time.monotonic() - started)
            watch.close()


class Offline(NamedTuple):
    """An engine, and what runs rows of a batch job on it, without a server."""

    engine: Dispatcher
    run_row: RunRow


@contextlib.contextmanager
def offline(settings: Settings, model: FoundModel) -> Iterator[Offline]:
    """Whoever uses it must run the engine, and close it. Raises StartupError with one line."""
    with Vocabulary.open(model.path) as vocabulary:
        watch = Watch.new(model=model.name)
        engine = _engine(settings, model, vocabulary, watch)
        models = ModelRegistry([_served(settings, model, engine, vocabulary)])
        yield Offline(engine, create_api(models, _api_options(settings), watch=watch).run_row)


def found_model(settings: Settings) -> FoundModel:
    """The model to serve, by its name in the API. Raises StartupError with one line if it cannot be had."""
    model = model_to_serve(settings.model)
    return FoundModel(settings.served_model_name or model.name, model.path)


def _served(settings: Settings, model: FoundModel, engine: Engine, vocabulary: Vocabulary) -> ServedModel:
    kind = model_kind(GgufHeader(model.path))
    template = _template(settings.chat_template, vocabulary) if kind is ModelKind.GENERATES else None
    return ServedModel(
        names=(model.name,),
        created=int(time.time()),
        engine=engine,
        tokenizer=vocabulary,
        template=template,
        tool_format=_tool_format(settings.tool_format, template),
        check_grammar=GrammarCheck,
        whitespace=Whitespace(settings.json_whitespace),
        kind=kind,
    )


def _engine(
    settings: Settings, model: FoundModel, vocabulary: Vocabulary, observer: EngineObserver
) -> Dispatcher:
    tune_engines()
    supervisor = Supervisor(
        (*_ENGINE_COMMAND, settings.log_format),
        _engine_options(settings, model, vocabulary),
        observer=observer,
        hang_limits=HangLimits(
            step_s=settings.hang_seconds or None, load_s=settings.load_hang_seconds or None
        ),
        max_crashes_a_minute=settings.max_crashes_per_minute,
    )
    return Dispatcher(
        supervisor, max_queue=settings.max_queue, max_held_bytes=settings.stream_buffer_mb * _MIB
    )


def _web_config(settings: Settings, api: Callable[..., Awaitable[None]]) -> uvicorn.Config:
    """Raises StartupError for a certificate that cannot be used."""
    limits = ConnectionLimits(
        max_connections=room_for_connections(settings.max_connections),
        read_timeout_s=settings.read_timeout_s,
        write_timeout_s=settings.write_timeout_s,
        excess_mark=EXCESS_CONNECTION,
    )
    config = uvicorn.Config(
        api,
        http=limited_connection(limits),
        ws=limited_socket(limits),
        ws_max_size=settings.max_body_mb * _MIB,
        ws_per_message_deflate=False,  # saves little in small messages, and costs CPU
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,  # uvicorn would believe them from 127.0.0.1; see --trusted-proxy
        timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
        server_header=False,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_keyfile_password=revealed(settings.ssl_keyfile_password),
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise StartupError(f"cannot use --ssl-certfile {settings.ssl_certfile}: {error}") from None
    return config


def _keys(settings: Settings) -> KeyRing:
    return KeyRing(revealed(settings.api_key), settings.api_keys)


async def _run(
    server: WebServer,
    engine: Dispatcher,
    listener: socket.socket,
    hangup: Hangup,
    keys: KeyRing,
    working: contextlib.AbstractAsyncContextManager[None],
) -> None:
    """Runs engine and web server side by side; an engine that cannot start ends both."""
    scheme = "https" if server.config.is_ssl else "http"
    logger.info("listening on %s://%s:%d", scheme, *listener.getsockname()[:2])
    hangup.call(keys.reload)
    engine_task = asyncio.create_task(engine.run())
    engine_task.add_done_callback(server.stop_if_failed)
    async with working:
        await server.serve(sockets=[listener])
    await engine_task


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """Binds a socket, before anything slow begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {error}") from None
    with listener:
        yield listener


def _template(path: Path | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The user's template, else the model's; None for a model that has none."""
    source = _read(path) if path else tokenizer.chat_template
    if source is None:
        logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
        return None
    return ChatTemplate(source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text)


def _tool_format(name: str, template: ChatTemplate | None) -> ToolFormat | None:
    """The user's choice, else what suits the template; None where tools have to be refused."""
    if name != "auto":
        return TOOL_FORMATS[name]
    return format_for(template) if template is not None else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read {path}: {error}") from None


def _adapter_files(settings: Settings) -> AdapterFiles:
    """Raises StartupError for a folder that is none."""
    folder = settings.adapter_dir
    if folder is not None and not folder.expanduser().is_dir():
        raise StartupError(f"--adapter-dir: there is no folder {folder}")
    return AdapterFiles(folder.expanduser() if folder is not None else None)


def _adapters(settings: Settings, model: str) -> tuple[Adapter, ...]:
    """Those of the options. Raises StartupError for files that cannot be read, and names that are no good."""
    names = [option.source.name for option in settings.adapter]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StartupError(f"--adapter: there are two of the name {twice}")
    for option in settings.adapter:
        if option.model not in (None, model):
            raise StartupError(f"--adapter: there is no model {option.model}, only {model}")
    files = _adapter_files(settings)
    return tuple(files.of_operator(option.source) for option in settings.adapter)


def _engine_options(settings: Settings, model: FoundModel, tokenizer: Tokenizer) -> EngineOptions:
    """The user's choice, else what `tune` has found, else the defaults."""
    model_path = model.path
    options = settings.engine_options(
        model_path,
        cache_bytes=_cache_bytes(settings),
        draft_model_path=resolve_model(settings.draft_model) if settings.draft_model else None,
        adapters=_adapters(settings, model.name),
        pinned_prompts=tuple(_pinned(path, tokenizer) for path in settings.pin_prompt),
        pinned_namespace=_pinned_namespace(settings),
    )
    _warn_of_threads(max(settings.threads or 1, settings.threads_batch or 1), Machine().num_cpus())
    profile = load_profile(model_path, settings.profile_dir) if settings.profile == "auto" else None
    if profile is None:
        return options
    logger.info("using the profile that was tuned for this model here: %s", profile)
    return profile.applied(options, given=settings.model_fields_set)


def _warn_of_threads(asked: int, cpus: int) -> None:
    if asked > cpus:
        logger.warning("%d threads on %d CPUs wait for each other: steps take many times longer", asked, cpus)


def _pinned(path: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of a prompt as they stand at the beginning of a request: with BOS, control tokens read as
    such."""
    text = _read(path)
    special = needs_special_tokens(text, bos_text=tokenizer.bos_text)
    tokens = tuple(tokenizer.encode(text, add_special=special, parse_special=True))
    if not tokens:
        raise StartupError(f"there is nothing to pin in {path}")
    return tokens


def _pinned_namespace(settings: Settings) -> str:
    """Pinned prompts serve the holders of the server's key, where keys are isolated."""
    if settings.cache_isolation == "off" or settings.api_key is None:
        return ""
    identity = key_identity(settings.api_key.get_secret_value().encode())
    return cache_namespace(salt=None, key=identity)


def _cache_bytes(settings: Settings) -> int:
    if settings.cache_mb is not None:
        return settings.cache_mb * _MIB
    return int(psutil.virtual_memory().total) // 4


def _api_options(settings: Settings) -> ApiOptions:
    return ApiOptions(
        api_key=revealed(settings.api_key),
        lenient=settings.lenient,
        max_body_bytes=settings.max_body_mb * _MIB,
        max_bodies_bytes=max(settings.max_bodies_mb, settings.max_body_mb) * _MIB,
        max_file_bytes=settings.max_file_mb * _MIB,
        max_choices=settings.max_choices,
        default_priority=settings.priority,
        isolate_by_key=settings.cache_isolation == "key",
        keep_alive_s=settings.keep_alive_s,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_output_tokens=settings.max_output_tokens,
        request_timeout_s=settings.request_timeout,
        read_timeout_s=settings.read_timeout_s,
        cors_origins=tuple(settings.cors_origin),
        trusted_proxies=tuple(settings.trusted_proxy),
    )


def _jobs(settings: Settings, model: str) -> Jobs | None:
    """None: no batch API, because nobody wants one or because the user's directory cannot keep it."""
    where = revealed(settings.jobs_db)
    if where == "none":
        return None
    try:
        database = open_database(where or str(user_data_dir() / "jobs.db"))
    except StartupError as error:
        if where is not None:
            raise
        logger.warning("there is no batch API: %s", error)
        return None
    return Jobs(database, job_options(settings, model))


def job_options(settings: Settings, model: str) -> JobOptions:
    return JobOptions(
        model=model,
        max_rows=settings.max_batch_rows,
        max_line_bytes=settings.max_body_mb * _MIB,
        concurrency=settings.batch_concurrency,
    )


@contextlib.asynccontextmanager
async def _working(jobs: Jobs | None, run_row: RunRow) -> AsyncIterator[None]:
    """Meanwhile batch jobs run; at the end they are left resumable."""
    if jobs is None:
        yield
        return
    task = asyncio.create_task(jobs.run(run_row))
    try:
        yield
    finally:
        await jobs.close()
        await task


async def _no_checkpoint() -> None:
    """There are no jobs."""


def _log_totals(engine: Dispatcher, seconds: float) -> None:
    totals = engine.totals
    logger.info(
        "served %d requests, %d prompt tokens, %d output tokens in %s",
        totals.requests,
        totals.prompt_tokens,
        totals.output_tokens,
        timedelta(seconds=round(seconds)),
    )
