"""One served model: its names, its engine, and all that a request to it needs; also of one whose file cannot
be read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import msgspec

from openai_cpu_server.contract.engine import Engine, EngineState, unavailable
from openai_cpu_server.contract.media import BLIND, DEAF, Picture, Sound
from openai_cpu_server.contract.model_info import FimTokens, ModelInfo, ModelKind, SequenceMarks, Tokenizer
from openai_cpu_server.errors import EngineUnavailable, InvalidRequest, wrong
from openai_cpu_server.models.grammars import ModelGrammars
from openai_cpu_server.prompt.chat_prompts import ChatPromptMaker
from openai_cpu_server.prompt.reasoning import ReasoningFormat, TemplateReasoning
from openai_cpu_server.prompt.rerank_template import RerankPrompts
from openai_cpu_server.prompt.tool_formats import ToolFormat

LOWEST = -9999.0
"""It stands for minus infinity, which JSON cannot say."""


class ShownPiece(msgspec.Struct, frozen=True):
    """A token's text and bytes. Control tokens show their name and have no bytes."""

    text: str
    bytes: tuple[int, ...] | None


class ShownPieces:
    """Remembers every token once shown: top log-probabilities name the same ones over and over."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, ShownPiece] = {}

    def __getitem__(self, token: int) -> ShownPiece:
        piece = self._known.get(token)
        if piece is None:
            piece = self._known[token] = self._look_up(token)
        return piece

    def _look_up(self, token: int) -> ShownPiece:
        raw = self.tokenizer.piece(token)
        if not raw:
            return ShownPiece(_text(self.tokenizer.piece(token, special=True)), None)
        return ShownPiece(_text(raw), tuple(raw))


def finite(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST


def _text(raw: bytes) -> str:
    r"""Bytes that are no text by themselves are written as OpenAI does: `bytes:\xe2\x82`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class ModelThinking(msgspec.Struct, frozen=True):
    """`is_on` and `budget` are for requests that do not say."""

    template: TemplateReasoning
    is_on: bool | None = None
    """None: as the template has it."""
    budget: int | None = None
    """Tokens; None: any number."""

    @property
    def form(self) -> ReasoningFormat:
        return self.template.form


class ServedTemplate(msgspec.Struct, frozen=True):
    """One of a model's chat templates, and how the model writes that is given it."""

    name: str
    """"": the one for chats."""
    tool_format: ToolFormat
    thinking: ModelThinking | None


def _opens_none(data: bytes, most_pixels: int, most_side: int) -> NoReturn:
    raise InvalidRequest(BLIND)


def _hears_none(data: bytes, rate: int, most_samples: int, most_at_once: int) -> NoReturn:
    raise InvalidRequest(DEAF)


def _writes_none(*_: object) -> NoReturn:
    raise InvalidRequest("this server has no templates but the model's own", param="template")


def _reads_none(data: bytes, most_chars: int) -> NoReturn:
    raise InvalidRequest("this server reads no files; send their text")


_TOOL_USE = "tool_use"
"""The name of the template for conversations with tools, where a file has one of its own for those."""


@dataclass(eq=False, kw_only=True)
class ServedModel:
    """Its engine belongs to the event loop's thread; all else may be used in any."""

    names: tuple[str, ...]
    """The first is the model's own, the others mean the same."""
    engine: Engine
    tokenizer: Tokenizer
    prompts: ChatPromptMaker
    tool_format: ToolFormat
    grammars: ModelGrammars
    rerank: RerankPrompts | None = None
    """None for a model without a template that asks yes or no."""
    kind: ModelKind = ModelKind.GENERATES
    may_retry: Callable[[], bool] = lambda: False
    """It has failed, and a request may make it try again."""
    quantisation: str | None = None
    """What its file states, such as `q4_k_m`."""
    thinking: ModelThinking | None = None
    """None for a model that does not think, or whose thoughts are to be part of its answers."""
    template_source: str | None = None
    """The text of its template for chats; None: it has none."""
    named: Mapping[str, ServedTemplate] = field(default_factory=dict)
    """Its further chat templates by name."""
    open_picture: Callable[[bytes, int, int], Picture] = _opens_none
    """Decodes a picture of at most so many pixels, and makes its longer side at most so long (0: as it is).
    It takes its time. Raises InvalidRequest, DeadlyInput and what else readers raise."""
    open_sound: Callable[[bytes, int, int, int], tuple[Sound, ...]] = _hears_none
    """Decodes a sound to so many samples a second, at most so many in all, in pieces of at most so many (0:
    one piece). As `open_picture`."""
    read_document: Callable[[bytes, int], str] = _reads_none
    """The text of a file, of at most so many characters. As `open_picture`."""
    write_template: Callable[[str, Sequence[Mapping[str, str]] | None, str, int], str] = _writes_none
    """The prompt that a client's template makes of messages and a suffix, for a context of so many tokens. As
    `open_picture`."""
    content_digest: Callable[[], str | None] = lambda: None
    """Reads the whole file, which takes its time; None: it is not the file any more that the model was made
    of."""
    let_go: Callable[[], object] = lambda: None
    """Whoever asks may remove its files from now on."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time."""

    def __post_init__(self) -> None:
        self.pieces = ShownPieces(self.tokenizer)

    @property
    def name(self) -> str:
        return self.names[0]

    def template(self, name: str | None, *, has_tools: bool) -> ServedTemplate:
        """The template that a request names, else the one that suits it. Raises InvalidRequest."""
        if name is None:
            name = _TOOL_USE if has_tools and _TOOL_USE in self.named else ""
        if name in ("", "default"):
            return ServedTemplate("", self.tool_format, self.thinking)
        if name not in self.named:
            known = ", ".join(f"'{each}'" for each in ("default", *self.named))
            raise wrong(
                f"'chat_template' is the name of one of the model's templates: {known}.", "chat_template"
            )
        return self.named[name]

    def loaded(self) -> ModelInfo:
        """Facts about the model, also of one that sleeps. Raises EngineUnavailable while there is nothing to
        generate with."""
        info, state = self.engine.info, self.engine.state
        has_failed = state is EngineState.FAILED and not self.may_retry()
        if info is None or has_failed or state is EngineState.STOPPED:
            raise unavailable(self.engine.status())
        return info


_AGAIN_S = 10


class UnreadableModel:
    """The contract's `Tokenizer` and `GrammarMaker`, and `Prompts`. Whatever needs tokens raises
    EngineUnavailable with the reason."""

    has_template = adds_bos = False
    vocab_size = 0
    bos_text = eos_text = ""
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


WAIT_S = 2.0
"""So long after reading a file has begun, requests wait for its end. Then they go on without it: 4 GB may
take ten seconds."""
_NICE = 19


class _Reading(NamedTuple):
    digest: asyncio.Future[str | None]
    until_s: float
    """Nobody waits for it behind this time, on the monotonic clock."""


class FileDigests:
    """Its methods belong to one event loop's thread."""

    def __init__(self, *, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._known: weakref.WeakKeyDictionary[ServedModel, _Reading] = weakref.WeakKeyDictionary()

    def begin(self, model: ServedModel) -> None:
        """Reads its file, if nobody has begun to."""
        if model not in self._known:
            self._known[model] = _Reading(_read(model), time.monotonic() + self._wait_s)

    async def of(self, model: ServedModel) -> str | None:
        """None: it is not known yet, or the model's file is another by now."""
        self.begin(model)
        digest, until_s = self._known[model]
        if digest.done():
            return digest.result()
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(digest), until_s - time.monotonic())
        return None


def _read(model: ServedModel) -> asyncio.Future[str | None]:
    """The end of the server does not wait for the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | None] = loop.create_future()

    def read() -> None:
        _step_back()
        digest = model.content_digest()
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(_tell, future, digest)

    threading.Thread(target=read, name="digest", daemon=True).start()
    return future


def _tell(future: asyncio.Future[str | None], digest: str | None) -> None:
    if not future.done():
        future.set_result(digest)


def _step_back() -> None:
    """Linux knows priorities of threads: whoever computes tokens goes before this one."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
