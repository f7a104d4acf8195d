"""Wires the layers together and runs them: model, tokenizer, template, engine, API, web server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import uvicorn

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.auth import key_identity
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.resolve.cache import cache_namespace
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.engine.client import EngineClient
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.profile import load_profile
from openai_cpu_server.llama.vocabulary import Vocabulary
from openai_cpu_server.model_source import resolve_model
from openai_cpu_server.prompt.chat import needs_special_tokens
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.settings import Settings

logger = logging.getLogger(__name__)

_ENGINE_COMMAND = (sys.executable, "-m", "openai_cpu_server.engine.process")
_CLOSE_CONNECTIONS_S = 1
"""What connections get to send their last bytes after Ctrl-C."""
_MIB = 1024 * 1024


def serve(settings: Settings) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises StartupError with one line if that cannot begin."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("httpx", "httpx2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    model_path = resolve_model(settings.model)
    with _listen(settings.host, settings.port) as listener, Vocabulary.open(model_path) as vocabulary:
        options = _engine_options(settings, model_path, vocabulary)
        engine = EngineClient(_ENGINE_COMMAND, options, max_queue=settings.max_queue)
        api = create_api(
            engine=engine,
            tokenizer=vocabulary,
            template=_template(settings.chat_template, vocabulary),
            options=_api_options(settings, model_path),
        )
        config = uvicorn.Config(
            api,
            lifespan="off",
            log_level=logging.WARNING,
            access_log=False,
            timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
            server_header=False,
        )
        started = time.monotonic()
        try:
            asyncio.run(_run(_Server(config, engine), engine, listener))
        finally:
            _log_totals(engine, time.monotonic() - started)


async def _run(server: _Server, engine: EngineClient, listener: socket.socket) -> None:
    """Engine and web server side by side; an engine that cannot start ends both."""
    logger.info("listening on http://%s:%d", *listener.getsockname()[:2])
    engine_task = asyncio.create_task(engine.run())
    engine_task.add_done_callback(server.stop_if_failed)
    await server.serve(sockets=[listener])
    await engine_task


class _Server(uvicorn.Server):
    """uvicorn, but streams end at once with the server, and a signal that was obeyed is not raised again."""

    def __init__(self, config: uvicorn.Config, engine: EngineClient) -> None:
        super().__init__(config)
        self._engine = engine

    def stop_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._engine.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket, before anything slow begins."""
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read {path}: {error}") from None


def _engine_options(settings: Settings, model_path: Path, tokenizer: Tokenizer) -> EngineOptions:
    """As the user says, else as `tune` has found, else the defaults."""
    options = settings.engine_options(
        model_path,
        cache_bytes=_cache_bytes(settings),
        pinned_prompts=tuple(_pinned(path, tokenizer) for path in settings.pin_prompt),
        pinned_namespace=_pinned_namespace(settings),
    )
    profile = load_profile(model_path, settings.profile_dir) if settings.profile == "auto" else None
    if profile is None:
        return options
    logger.info("using the profile that was tuned for this model here: %s", profile)
    return profile.applied(options, given=settings.model_fields_set)


def _pinned(path: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A prompt as its tokens stand at the beginning of a request: with BOS, control tokens read as such."""
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
    identity = key_identity(f"Bearer {settings.api_key.get_secret_value()}")
    return cache_namespace(salt=None, key=identity)


def _cache_bytes(settings: Settings) -> int:
    if settings.cache_mb is not None:
        return settings.cache_mb * _MIB
    return int(psutil.virtual_memory().total) // 4


def _api_options(settings: Settings, model_path: Path) -> ApiOptions:
    return ApiOptions(
        model=settings.served_model_name or _model_name(settings.model, model_path),
        created=int(time.time()),
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        lenient=settings.lenient,
        max_body_bytes=settings.max_body_mb * _MIB,
        max_choices=settings.max_choices,
        default_priority=settings.priority,
        isolate_by_key=settings.cache_isolation == "key",
        keep_alive_s=settings.keep_alive_s,
    )


def _model_name(asked: str, path: Path) -> str:
    """`demo` and aliases keep their name; files and hub models go by their file's."""
    is_file = "/" in asked or ":" in asked or asked.endswith(".gguf")
    return path.stem if is_file else asked


def _log_totals(engine: EngineClient, seconds: float) -> None:
    totals = engine.totals
    logger.info(
        "served %d requests, %d prompt tokens, %d output tokens in %s",
        totals.requests,
        totals.prompt_tokens,
        totals.output_tokens,
        timedelta(seconds=round(seconds)),
    )
