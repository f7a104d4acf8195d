"""What the API process and a reader process tell each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import msgspec

from openai_cpu_server.contract.grammar import GrammarAnswer, GrammarOrder
from openai_cpu_server.contract.media import Picture, Sound
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import FimTokens, SequenceMarks
from openai_cpu_server.prompt.reasoning import TemplateReasoning, ThinkingStage

SHARE_S = 10.0
"""Seconds of computing that one piece of work may take. The longest that is meant to pass takes two."""


class ReaderStart(msgspec.Struct, frozen=True):
    """The first message."""

    readable: Union[Sequence[str], None]
    """The folders that models are in; None: the process is not confined to them."""
    opens_media: bool = False
    share_s: float = SHARE_S


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read of a model."""

    path: str
    generates: bool
    chat_template: str | None = None
    """In place of the file's own."""
    tool_format: str = "auto"
    reasoning_format: str = "auto"


# -- what a reader is asked to do ----------------------------------------------------------------------------


class OpenModel(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Raises StartupError."""

    key: int
    source: ModelSource
    is_known: bool
    """The facts have been told before: their digest is enough."""


class CloseModel(msgspec.Struct, frozen=True, tag=True):
    key: int


class EncodeTexts(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    key: int
    texts: Sequence[str]
    add_special: bool
    parse_special: bool


class RenderChat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Raises InvalidRequest, TemplateFailed."""

    key: int
    conversation: bytes
    """JSON: messages, tools, variables."""
    written: Mapping[int, Sequence[int]]
    thinks_not: bool
    most_tokens: int | None
    template: str = ""
    """The name of a further one; "": the one for chats."""
    begins_answer: bool = True
    has_marks: Union[bool, None] = None
    shown: Mapping[str, Sequence[int]] = {}
    """These three as of `Conversation`."""


class RenderRerank(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Raises TemplateFailed."""

    key: int
    query: str
    documents: Sequence[str]


class WriteTemplate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Raises InvalidRequest."""

    template: str
    """Of Ollama's language. A client has sent it."""
    messages: Union[Sequence[Mapping[str, str]], None]
    """With `role` and `content`; None: the template is only checked."""
    suffix: str
    most_chars: int


class MakeGrammar(msgspec.Struct, frozen=True, tag=True):
    key: int
    order: GrammarOrder


class OpenPicture(msgspec.Struct, frozen=True, tag=True):
    """Raises InvalidRequest."""

    data: bytes
    most_pixels: int
    most_side: int
    """A larger one is made smaller; 0: none is."""


class OpenSound(msgspec.Struct, frozen=True, tag=True):
    """Raises InvalidRequest."""

    data: bytes
    rate: int
    """Samples a second that it is made to have."""
    most_samples: int
    most_at_once: int
    """So many samples one piece has at most; 0: it is one piece."""


class ReadDocument(msgspec.Struct, frozen=True, tag=True):
    """Raises InvalidRequest."""

    data: bytes
    most_chars: int


class FindProfile(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What `tune` has found for this file here, over these options."""

    options: EngineOptions
    profile_dir: str
    given: frozenset[str]
    """Options that the user has chosen."""


Work = Union[
    OpenModel,
    CloseModel,
    EncodeTexts,
    RenderChat,
    RenderRerank,
    WriteTemplate,
    MakeGrammar,
    OpenPicture,
    OpenSound,
    ReadDocument,
    FindProfile,
]


# -- what comes of it ----------------------------------------------------------------------------------------


class ReadTemplate(msgspec.Struct, frozen=True):
    """How a model writes that is given this chat template."""

    tool_format: str
    reasoning: TemplateReasoning | None
    source: str


class VocabularyFacts(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A vocabulary, and what its chat template says and shows."""

    vocab_size: int
    bos: int | None
    eos: int | None
    bos_text: str
    eos_text: str
    adds_bos: bool
    fim: FimTokens | None
    marks: SequenceMarks
    end_tokens: frozenset[int]
    pieces: bytes
    """The bytes of all tokens, one behind the other."""
    piece_ends: bytes
    """Where each of them ends: native unsigned integers of 4 bytes."""
    silent: bytes
    """The tokens that are no text, likewise."""
    longest_piece: int | None
    template: ReadTemplate | None
    """What its chat template says; None: it has none."""
    named: Mapping[str, ReadTemplate]
    """What its further ones say, such as `tool_use`."""
    rerank_answers: tuple[str, str] | None
    """Yes and no, as the template for reranking wants them; None: it has none."""


class ModelOpened(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    digest: bytes
    """Equal for equal facts."""
    facts: VocabularyFacts | None = None


class EncodedTexts(msgspec.Struct, frozen=True, tag=True):
    tokens: Sequence[Sequence[int]]


class Rendered(msgspec.Struct, frozen=True, tag=True):
    tokens: tuple[int, ...]
    stage: ThinkingStage
    wants_thoughts: bool
    borders: tuple[int, ...]


class PictureOpened(msgspec.Struct, frozen=True, tag=True):
    picture: Picture


class SoundOpened(msgspec.Struct, frozen=True, tag=True):
    pieces: tuple[Sound, ...]


class DocumentRead(msgspec.Struct, frozen=True, tag=True):
    text: str


class Profiled(msgspec.Struct, frozen=True, tag=True):
    options: EngineOptions
    found: str | None
    """The profile in words; None: there is none."""


class ModelClosed(msgspec.Struct, frozen=True, tag=True):
    """There is nothing to tell."""


class WorkRefused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An exception of `errors.py`, by the name of its class."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None


Result = Union[
    ModelOpened,
    EncodedTexts,
    Rendered,
    GrammarAnswer,
    PictureOpened,
    SoundOpened,
    DocumentRead,
    Profiled,
    ModelClosed,
    WorkRefused,
]


class WorkReply(msgspec.Struct, frozen=True):
    result: Result
    is_last: bool = False
    """The process has grown, and ends: another is to take its place."""
