"""Messages between the API and reader processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, Union

import msgspec

from openai_cpu_server.contract.grammar import GrammarAnswer, GrammarOrder
from openai_cpu_server.contract.media import Picture, Sound
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import FimTokens, SequenceMarks
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation
from openai_cpu_server.prompt.reasoning import TemplateReasoning

SHARE_S = 10.0
"""CPU seconds for one piece of work. The longest legitimate one takes two."""


class ReaderStart(msgspec.Struct, frozen=True):
    readable: Union[Sequence[str], None]
    """Model folders, or None for no confinement."""
    opens_media: bool = False
    share_s: float = SHARE_S


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    generates: bool
    chat_template: str | None = None
    """Replaces the file's own."""
    tool_format: str = "auto"
    reasoning_format: str = "auto"


def valid_text(text: str) -> str:
    """Replace unpaired surrogates, which JSON and PDFs can spell, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


# -- work -------------------------------------------------------------------------------------------------

R = TypeVar("R")


class WorkFor(msgspec.Struct, Generic[R], frozen=True):
    @property
    def identity(self) -> WorkFor[R]:
        """Small, and equal for all pieces of one work."""
        return self

    @property
    def is_continued(self) -> bool:
        return False


class FileWork(WorkFor[R], Generic[R], frozen=True):
    """Work on a client's file. `data` is its own message, because encoding 20 MB would hold the interpreter's
    lock for tens of milliseconds."""

    data: bytes


class OpenModel(WorkFor["ModelOpened"], frozen=True, tag=True, kw_only=True):
    """Open a model. Raises StartupError."""

    key: int
    source: ModelSource
    has_facts: bool
    """The client has the facts and needs only their digest."""


class CloseModel(WorkFor[None], frozen=True, tag=True):
    key: int


class EncodeTexts(WorkFor[list[list[int]]], frozen=True, tag=True, kw_only=True):
    key: int
    texts: Sequence[str]
    add_special: bool
    parse_special: bool


class RenderChat(WorkFor[ChatPrompt], frozen=True, tag=True):
    """Render a conversation. Raises InvalidRequest, TemplateFailed."""

    key: int
    conversation: Conversation
    """Conversation without the fields in `texts`."""
    texts: bytes
    """JSON of messages, tools and variables, which may have lone surrogates."""


class RenderRerank(WorkFor[list[list[int]]], frozen=True, tag=True, kw_only=True):
    """Render reranking prompts. Raises TemplateFailed."""

    key: int
    query: str
    documents: Sequence[str]


class WriteTemplate(WorkFor[str], frozen=True, tag=True, kw_only=True):
    """Render a client's template. Raises InvalidRequest."""

    template: str
    """In Ollama's language."""
    messages: Union[Sequence[Mapping[str, str]], None]
    """Messages with `role` and `content`, or None to only check the template."""
    suffix: str
    most_chars: int


class MakeGrammar(WorkFor[GrammarAnswer], frozen=True, tag=True):
    key: int
    order: GrammarOrder


class OpenPicture(FileWork[Picture], frozen=True, tag=True):
    """Decode a picture. Raises InvalidRequest."""

    most_pixels: int
    most_side: int
    """Longest side in pixels, or 0 for no limit."""


class OpenSound(FileWork["Union[SoundOpened, None]"], frozen=True, tag=True):
    """Result: None if the process needs the data again. Raises InvalidRequest.

    `data`: empty for a process that has opened the sound.
    """

    digest: bytes
    rate: int
    """Samples per second of the result."""
    most_samples: int
    most_at_once: int
    """Samples of the longest piece, or 0 for one piece."""
    first: int = 0
    """First piece of the result."""

    @property
    def identity(self) -> OpenSound:
        return msgspec.structs.replace(self, data=b"", first=0)

    @property
    def is_continued(self) -> bool:
        return self.first > 0


class ReadDocument(FileWork["DocumentRead"], frozen=True, tag=True):
    """Extract the text. Raises InvalidRequest."""

    most_chars: int
    charset: str = ""
    """Client's name for the encoding of plain text, or "" to find it."""


class RenderPage(FileWork[Picture], frozen=True, tag=True):
    """Render a page of a PDF. Raises InvalidRequest."""

    number: int
    most_pixels: int


class FindProfile(WorkFor["Profiled"], frozen=True, tag=True, kw_only=True):
    """Apply `tune`'s profile."""

    options: EngineOptions
    profile_dir: str
    user_options: frozenset[str]
    """Options to leave as they are."""


ReaderWork = Union[
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
    RenderPage,
    FindProfile,
]


# -- results ----------------------------------------------------------------------------------------------


class ReadTemplate(msgspec.Struct, frozen=True):
    tool_format: str
    reasoning: TemplateReasoning | None
    source: str


class VocabularyFacts(msgspec.Struct, frozen=True, tag=True, kw_only=True):
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
    piece_ends: bytes
    """Ends in `pieces`: native unsigned integers of 4 bytes."""
    silent: bytes
    """Tokens without text, encoded likewise."""
    longest_piece: int | None
    template: ReadTemplate | None
    named: Mapping[str, ReadTemplate]
    """Further templates, such as `tool_use`."""
    rerank_answers: tuple[str, str] | None
    """Yes and no in the reranking template's words."""


class ModelOpened(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    digest: bytes
    facts: VocabularyFacts | None = None


class SoundOpened(msgspec.Struct, frozen=True, tag=True):
    pieces: tuple[Sound, ...]
    is_last: bool


class DocumentRead(msgspec.Struct, frozen=True, tag=True):
    parts: tuple[Union[str, int], ...]
    """Texts, and numbers of pictured pages."""


class Profiled(msgspec.Struct, frozen=True, tag=True):
    options: EngineOptions
    found: str | None


class WorkRefused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Exception of `errors.py`, by class name."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None


ReaderResult = Union[
    None,
    str,
    list[list[int]],
    ModelOpened,
    ChatPrompt,
    GrammarAnswer,
    Picture,
    SoundOpened,
    DocumentRead,
    Profiled,
    WorkRefused,
]
"""Template texts and token lists are plain."""


class WorkReply(msgspec.Struct, frozen=True):
    result: ReaderResult
    is_last: bool = False
    """The process has grown and ends after this reply."""
