"""Served models, also of unreadable files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import msgspec

from openai_cpu_server.contract.engine import Engine, EngineState, unavailable
from openai_cpu_server.contract.media import BLIND, DEAF, Picture, Sound
from openai_cpu_server.contract.model_info import FimTokens, ModelInfo, ModelKind, SequenceMarks, Tokenizer
from openai_cpu_server.errors import EngineUnavailable, InvalidRequest, wrong
from openai_cpu_server.models.defaults import NO_DEFAULTS, ModelDefaults
from openai_cpu_server.models.grammars import ModelGrammars
from openai_cpu_server.prompt.chat_prompts import ChatPromptMaker, RerankPrompts
from openai_cpu_server.prompt.reasoning import ReasoningFormat, TemplateReasoning
from openai_cpu_server.prompt.tool_formats import ToolFormat

LOWEST = -9999.0
"""Replacement for minus infinity, which JSON lacks."""


class PieceText(msgspec.Struct, frozen=True):
    """A control token's text is its name, without bytes."""

    text: str
    bytes: tuple[int, ...] | None


class PieceTexts(dict[int, PieceText]):
    """Cache of the tokens that top log-probabilities repeat."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token: int) -> PieceText:
        raw = self.tokenizer.piece(token)
        shown = raw or self.tokenizer.piece(token, special=True)
        try:
            text = shown.decode()
        except UnicodeDecodeError:  # OpenAI writes such tokens so
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in shown)
        self[token] = piece = PieceText(text, tuple(raw) if raw else None)
        return piece


def finite_logprob(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST


class ModelThinking(msgspec.Struct, frozen=True):
    template: TemplateReasoning
    is_on: bool | None = None
    """Default, or None for the template's."""
    budget: int | None = None
    """Default token limit of reasoning, or None."""

    @property
    def form(self) -> ReasoningFormat:
        return self.template.form


class ServedTemplate(msgspec.Struct, frozen=True):
    name: str
    """"" for the default template."""
    tool_format: ToolFormat
    thinking: ModelThinking | None


def _refuse(message: str, param: str | None, *_: object) -> NoReturn:
    raise InvalidRequest(message, param=param)


_NO_PICTURES = partial(_refuse, BLIND, None)
_NO_SOUND = partial(_refuse, DEAF, None)
_NO_DOCUMENTS = partial(_refuse, "this server does not read files; send their text", None)
_NO_TEMPLATES = partial(_refuse, "this server has only the model's own template", "template")
_TOOL_USE = "tool_use"


@dataclass(eq=False, kw_only=True)
class ServedModel:
    """Thread-safe except for the engine, which belongs to the event loop's thread."""

    names: tuple[str, ...]
    """Own name, then aliases."""
    engine: Engine
    tokenizer: Tokenizer
    prompts: ChatPromptMaker
    tool_format: ToolFormat
    grammars: ModelGrammars
    rerank: RerankPrompts | None = None
    """Prompts, or None without a template for yes or no."""
    kind: ModelKind = ModelKind.GENERATES
    may_retry: Callable[[], bool] = lambda: False
    """True if the model failed and a request may load it again."""
    quantisation: str | None = None
    """Type that its file states, such as `q4_k_m`."""
    thinking: ModelThinking | None = None
    """Absent if the model does not reason or shows it as text."""
    defaults: ModelDefaults = NO_DEFAULTS
    template_source: str | None = None
    named: Mapping[str, ServedTemplate] = field(default_factory=dict)
    open_picture: Callable[[bytes, int, int], Picture] = _NO_PICTURES
    """Data, most pixels, longest side or 0. Blocks, as the following; raises InvalidRequest, DeadlyInput and
    other errors of readers."""
    open_sound: Callable[[bytes, int, int, int], Iterator[tuple[Sound, ...]]] = _NO_SOUND
    """Data, sample rate, most samples in all and per piece (0: one piece). Yields some pieces at a time."""
    read_document: Callable[[bytes, int, str], tuple[str | int, ...]] = _NO_DOCUMENTS
    """Data, most characters, charset or "". Returns texts and numbers of pages that are pictures."""
    render_page: Callable[[bytes, int, int], Picture] = _NO_PICTURES
    """PDF, page number, most pixels."""
    write_template: Callable[[str, Sequence[Mapping[str, str]] | None, str, int], str] = _NO_TEMPLATES
    """Template, messages, suffix, context size in tokens."""
    content_digest: Callable[[], str | None] = lambda: None
    """Reads the whole file and blocks. Returns None if it was replaced since opening."""
    release_files: Callable[[], object] = lambda: None
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time."""

    def __post_init__(self) -> None:
        self.pieces = PieceTexts(self.tokenizer)

    @property
    def name(self) -> str:
        return self.names[0]

    def template(self, name: str | None, *, has_tools: bool) -> ServedTemplate:
        """Return the named or the suitable template. Raises InvalidRequest."""
        if name is None:
            name = _TOOL_USE if has_tools and _TOOL_USE in self.named else ""
        if name in ("", "default"):
            return ServedTemplate("", self.tool_format, self.thinking)
        if name not in self.named:
            names = ", ".join(f"'{each}'" for each in ("default", *self.named))
            raise wrong(
                f"'chat_template' is the name of one of the model's templates: {names}.", "chat_template"
            )
        return self.named[name]

    def loaded(self) -> ModelInfo:
        """Return facts even of a sleeping model. Raises EngineUnavailable if it cannot generate."""
        info, state = self.engine.info, self.engine.state
        has_failed = state is EngineState.FAILED and not self.may_retry()
        if info is None or has_failed or state is EngineState.STOPPED:
            raise unavailable(self.engine.status())
        return info


_AGAIN_S = 10


class UnreadableModel:
    """Substitute parts of an unreadable file. Every use of tokens raises EngineUnavailable with the
    reason."""

    has_template = adds_bos = False
    bos: int | None = None
    fim: FimTokens | None = None
    marks = SequenceMarks()
    end_tokens: frozenset[int] = frozenset()

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def least_tokens(self, text: str) -> int:
        return 0

    def _refuse(self, *_: object, **options: object) -> NoReturn:
        raise EngineUnavailable(f"The model could not be loaded: {self._reason}", _AGAIN_S)

    encode = encode_all = piece = decode = prompt = __call__ = _refuse
    vocab_size = bos_text = eos_text = property(_refuse)


WAIT_S = 2.0
"""Wait for a digest, which may take ten seconds for 4 GB."""
_NICE = 19


class FileDigests:
    """Digests, computed once per model. Its methods belong to one event loop's thread."""

    def __init__(self, *, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._digests: weakref.WeakKeyDictionary[ServedModel, tuple[asyncio.Future[str | None], float]] = (
            weakref.WeakKeyDictionary()
        )
        """Results, with the end of waiting on the monotonic clock."""

    def begin(self, model: ServedModel) -> None:
        if model not in self._digests:
            self._digests[model] = (_read(model), time.monotonic() + self._wait_s)

    async def of(self, model: ServedModel) -> str | None:
        """Return None if it is unknown yet or the file was replaced."""
        self.begin(model)
        digest, until_s = self._digests[model]
        if digest.done():
            return digest.result()
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(digest), until_s - time.monotonic())
        return None


def _read(model: ServedModel) -> asyncio.Future[str | None]:
    """Use a daemon thread, which does not delay the exit, below the priority of computing threads. Linux has
    priorities per thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | None] = loop.create_future()

    def deliver(digest: str | None) -> None:
        if not future.done():
            future.set_result(digest)

    def read() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        digest = model.content_digest()
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(deliver, digest)

    threading.Thread(target=read, name="digest", daemon=True).start()
    return future
