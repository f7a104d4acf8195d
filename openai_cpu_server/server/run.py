"""Wiring of all layers: models, engines, answer cache, API, web server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import uvicorn

from openai_cpu_server.answers.cache import AnswerCache, AnswerObserver, open_answers
from openai_cpu_server.answers.store import StoreBounds
from openai_cpu_server.api.application import ServedApplication, create_api
from openai_cpu_server.api.generation.answer_lookup import AnswerLookup, SimilarAnswers
from openai_cpu_server.api.state import ModelKeeping, ModelStore
from openai_cpu_server.config.command_line import peer_variables
from openai_cpu_server.config.folders import foreign_settings, tune_engines, user_data_dir
from openai_cpu_server.config.settings import Settings, revealed
from openai_cpu_server.config.sources import option
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.http import server as web
from openai_cpu_server.http.body import BodyQuota
from openai_cpu_server.http.frames import LimitedSocket
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.http.limits import Meter, RateLimits
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.run.rows import RunRow
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.mcp_servers.connection import ConfiguredServers
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.observe.telemetry import Telemetry
from openai_cpu_server.observe.tracing import open_tracing
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.reader.messages import SHARE_S
from openai_cpu_server.server.fleet import ModelFleet
from openai_cpu_server.server.model_builder import reader_pool
from openai_cpu_server.server.options import adapter_files, api_options, is_on_loopback, job_options
from openai_cpu_server.server.plans import ModelPlan, planned_models
from openai_cpu_server.server.store import FleetStore, ModelDir

_MIB = 1024 * 1024


def check_answer_cache(settings: Settings) -> None:
    if settings.semantic_cache is None and settings.semantic_cache_model is not None:
        raise StartupError("--semantic-cache-model needs --semantic-cache, such as 0.95")
    if revealed(settings.answer_cache) == "off" and settings.semantic_cache is not None:
        raise StartupError("--semantic-cache needs an --answer-cache")


def open_answer_lookup(
    settings: Settings, models: ModelRegistry, watcher: AnswerObserver
) -> AnswerLookup | None:
    check_answer_cache(settings)
    least, where = settings.semantic_cache, revealed(settings.answer_cache)
    if where == "off" or (where is None and least is None):
        return None
    similar = None
    if least is not None:
        similar = SimilarAnswers(embedding_model(models, settings.semantic_cache_model), least)
    bounds = StoreBounds(settings.answer_cache_ttl, settings.answer_cache_mb * _MIB)
    store = open_answers(where or "on", bounds, default=user_data_dir() / "answers.db")
    return AnswerLookup(AnswerCache(store, bounds, watcher), models, similar)


def embedding_model(models: ModelRegistry, named: str | None) -> str:
    """Return the server's own embedding model. `named`: None for the only one."""
    can = [model.name for model in models.current if model.kind is ModelKind.EMBEDS]
    if named is None:
        if len(can) == 1:
            return can[0]
        found = f"{', '.join(can)} embed: name one" if can else "no model embeds: add --model minilm"
        raise StartupError(f"--semantic-cache needs --semantic-cache-model, for {found}")
    model = next((model for model in models.current if named in model.names), None)
    if model is None:
        raise StartupError(f"--semantic-cache-model: unknown model {named!r}")
    if model.kind is not ModelKind.EMBEDS:
        is_broken = model.engine.state is EngineState.FAILED
        why = "cannot be read" if is_broken else f"{model.kind.value} and does not embed"
        raise StartupError(f"--semantic-cache-model: {named!r} {why}")
    return model.name


logger = logging.getLogger(__name__)

_CLOSE_CONNECTIONS_S = 1
"""Time after Ctrl-C for connections' last bytes."""


def run_server(
    settings: Settings, reader: ReaderChild | None = None, on_listening: Callable[[str], None] | None = None
) -> None:
    """Serve until Ctrl-C or SIGTERM. `on_listening` gets the URL."""
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # the log may be closed
        faulthandler.enable()  # a crash of native code prints where it was
    hangup = web.Hangup()
    set_up_logs(settings.log_level, settings.log_format)
    for advice in peer_variables(foreign_settings(), {*map(option, Settings.model_fields)}):
        logger.warning(advice)
    plans = planned_models(settings)
    with (
        contextlib.closing(reader_pool(settings, plans, child=reader)) as pool,
        listening(settings.host, settings.port) as listener,
    ):
        tune_engines()
        tracing = open_tracing(settings.traces_endpoint) if settings.traces_endpoint else None
        telemetry = Telemetry.new(model=plans[0].name, tracing=tracing)
        pool.on_death = telemetry.metrics.reader_died
        telemetry.metrics.watch_readers(pool.load, SHARE_S)
        fleet = ModelFleet(settings, plans, telemetry, pool)
        store = FleetStore(settings, fleet) if settings.allow_pull else None
        if settings.models_dir is not None:
            fleet.registry.catalog = ModelDir(settings, plans, fleet)
        served = open_api(settings, fleet.registry, telemetry, keeping=fleet, store=store)
        config = _web_config(settings, served.api, close_s=_CLOSE_CONNECTIONS_S)
        started = time.monotonic()
        try:
            server = web.WebServer(
                config,
                fleet,
                drain_s=settings.drain_seconds,
                checkpoint=served.jobs.stop if served.jobs else partial(asyncio.sleep, 0),
            )
            scheme = "https" if config.is_ssl else "http"
            url = f"{scheme}://{web.authority(*listener.getsockname()[:2])}"
            logger.info("listening on %s", url)
            if on_listening is not None:
                on_listening(url)
            asyncio.run(_run(server, fleet, listener, hangup, served))
        finally:
            totals = fleet.totals
            logger.info(
                "served %d requests, %d prompt tokens, %d output tokens in %s",
                totals.requests,
                totals.prompt_tokens,
                totals.output_tokens,
                timedelta(seconds=round(time.monotonic() - started)),
            )
            telemetry.close()


class ServedApi(NamedTuple):
    api: ServedApplication
    keys: KeyRing
    jobs: Jobs | None
    answer_lookup: AnswerLookup | None
    mcp: ConfiguredServers | None

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the answer cache and batch jobs. At the end jobs stay resumable and MCP servers stop."""
        nothing = contextlib.nullcontext()
        async with self.answer_lookup or nothing, self.mcp or nothing:
            if self.jobs is None:
                yield
                return
            work = (self.jobs.run(self.api.run_row), self.jobs.keep_book())
            tasks = [asyncio.create_task(each) for each in work]
            try:
                yield
            finally:
                await self.api.settle()
                await self.jobs.close()
                await asyncio.gather(*tasks)


def open_api(
    settings: Settings,
    models: ModelRegistry,
    telemetry: Telemetry,
    *,
    keeping: ModelKeeping | None = None,
    store: ModelStore | None = None,
) -> ServedApi:
    """`keeping`, `store`: None if models are not loaded, or not changed, at run time."""
    answer_lookup = open_answer_lookup(settings, models, telemetry.metrics)
    mcp = None
    if settings.mcp or settings.mcp_allow_url:
        mcp = ConfiguredServers(
            {name: table.options for name, table in settings.mcp.items()},
            settings.mcp_limits,
            allowed_hosts=settings.mcp_allow_url,
        )
    keys = KeyRing(
        revealed(settings.api_key), settings.api_keys, is_open_to_gateways=settings.open_to_gateways
    )
    jobs = _jobs(settings, models.default.name)
    if keys.is_open and not is_on_loopback(settings.host):
        logger.warning(
            "without --api-key or --api-keys, every client that reaches %s may use this server%s",
            settings.host or "it",
            " and administer it (--open-admin)" if settings.open_admin else "",
        )
    api = create_api(
        models,
        api_options(settings),
        keys=keys,
        limits=RateLimits(Meter.open(revealed(settings.limits_url))),
        jobs=jobs,
        telemetry=telemetry,
        find_adapter=adapter_files(settings).of_client,
        keeping=keeping,
        model_store=store,
        answer_lookup=answer_lookup,
        mcp=mcp,
    )
    return ServedApi(api, keys, jobs, answer_lookup, mcp)


class OfflineModels(NamedTuple):
    fleet: ModelFleet
    run_row: RunRow


def offline(settings: Settings, plans: Sequence[ModelPlan]) -> OfflineModels:
    """Build models without a server. The caller runs and closes the fleet."""
    tune_engines()
    telemetry = Telemetry.new(model=plans[0].name)
    fleet = ModelFleet(settings, plans, telemetry, reader_pool(settings, plans))
    return OfflineModels(
        fleet, create_api(fleet.registry, api_options(settings), telemetry=telemetry).run_row
    )


def _web_config(settings: Settings, api: ServedApplication, *, close_s: int) -> uvicorn.Config:
    """`close_s`: time for connections to end."""
    limits = web.ConnectionLimits(
        max_connections=web.room_for_connections(settings.max_connections),
        read_timeout_s=settings.read_timeout_s,
        write_timeout_s=settings.write_timeout_s,
        messages=lambda: BodyQuota(api.bodies, sys.maxsize),
        complaints=web.Complaints(),
    )
    config = uvicorn.Config(
        api.app,
        http=web.limited(web.LimitedConnection, limits),
        ws=web.limited(LimitedSocket, limits),
        backlog=web.ACCEPTED_AT_ONCE,
        ws_max_size=settings.max_body_mb * _MIB,
        ws_per_message_deflate=False,  # saves little in small messages, and costs CPU
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,  # uvicorn would believe them from 127.0.0.1; see --trusted-proxy
        timeout_keep_alive=settings.idle_timeout_s,  # type: ignore[arg-type]  # it says int, and adds it to a time
        timeout_graceful_shutdown=close_s,
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


async def _run(
    server: web.WebServer, fleet: ModelFleet, listener: socket.socket, hangup: web.Hangup, served: ServedApi
) -> None:
    """Run engines and web server. An only engine that cannot start ends both."""
    hangup.call(served.keys.reload)
    engine_task = asyncio.create_task(fleet.run())
    engine_task.add_done_callback(server.stop_if_failed)
    async with served.working():
        await server.serve(sockets=[listener])
    await engine_task


@contextlib.asynccontextmanager
async def web_serving(
    settings: Settings, api: ServedApplication, *, close_s: int
) -> AsyncIterator[asyncio.Task[None]]:
    """Answer on a port that other processes may share. At the end requests have `close_s`."""
    config = _web_config(settings, api, close_s=close_s)
    with listening(settings.host, settings.port, is_shared=True) as listener:
        server = web.Listener(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield task
        finally:
            server.should_exit = True
            await asyncio.wait([task])


_OF_THIS_MACHINE = "; --host is an address of this machine, or 0.0.0.0 for all"
_REMEDIES = {
    errno.EADDRINUSE: "; stop the program that listens there, or choose another with --port (0: any)",
    errno.EACCES: "; ports below 1024 need privileges, choose another with --port",
    errno.EADDRNOTAVAIL: _OF_THIS_MACHINE,
    socket.EAI_NONAME: _OF_THIS_MACHINE,
}


@contextlib.contextmanager
def listening(host: str, port: int, *, is_shared: bool = False) -> Iterator[socket.socket]:
    """`is_shared`: other processes on the port get part of the connections. `::` includes IPv4 where the
    system permits."""
    host = host.strip("[]")
    try:
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=1024,
            reuse_port=is_shared,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except TypeError:  # the resolver's encoding
        raise StartupError(f"cannot listen on {host}: this is not a host name") from None
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while ")[0]
        remedy = _REMEDIES.get(error.errno or 0, "")
        raise StartupError(f"cannot listen on {web.authority(host, port)}: {why}{remedy}") from None
    with listener:
        # Connections inherit it. asyncio would set it for those of a socket made with IPPROTO_TCP alone, and
        # without it a kept-alive client gets bodies and tokens some 40 ms late: they wait for its next ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


def _jobs(settings: Settings, model: str) -> Jobs | None:
    """Return None if the batch API is off or has no place for its database."""
    where = revealed(settings.jobs_db)
    if where == "none":
        return None
    try:
        database = open_database(where or str(user_data_dir() / "jobs.db"))
    except StartupError as error:
        if where is not None:
            raise
        logger.warning("the batch API is off: %s", error)
        return None
    return Jobs(database, job_options(settings, model))
