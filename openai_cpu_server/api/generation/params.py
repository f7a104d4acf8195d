"""Requests of all families in one form.

Parts that may be rejected once the model is known carry the client's path (`text.format.schema`) for errors.
Fields without a path have one name in all families.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Union

import msgspec
from pydantic import JsonValue

from openai_cpu_server.contract.grammar import GrammarSource
from openai_cpu_server.contract.media import MediaItem, MediaShape
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars
from openai_cpu_server.prompt.template import MEDIA_MARK, joined

JsonObject = dict[str, JsonValue]
LONG_BODY = 64 * 1024
"""Bytes above which a body may take more than a few milliseconds."""


class LimitParam(msgspec.Struct, frozen=True):
    tokens: int
    path: str
    is_ceiling: bool = False
    """True if a smaller rest of the context is acceptable. Otherwise all tokens must fit."""
    is_ours: bool = False
    """True if the client has named none. Nothing is then reserved from its key's limits."""


class FormParam(msgspec.Struct, frozen=True):
    path: str
    make: Callable[[ModelGrammars, str], CheckedGrammar]
    """Compiler of the grammar, called with the path for errors. Raises InvalidRequest."""
    field: str
    """First field on the path, or the object in it that selects the form."""


class ToolUse(enum.Enum):
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """Exactly one call of one function."""


class TextParam(msgspec.Struct, frozen=True):
    source: GrammarSource | None = None
    """Syntax of the grammar, or None for any text."""
    definition: str = ""
    path: str = ""


class FunctionParam(msgspec.Struct, frozen=True):
    name: str
    path: str
    schema_path: str
    description: str | None = None
    parameters: JsonObject | None = None
    is_strict: bool = False
    text: TextParam | None = None
    """Set for a custom tool, whose `parameters` describe it as a function."""


class ToolsParam(msgspec.Struct, frozen=True, kw_only=True):
    functions: tuple[FunctionParam, ...]
    use: ToolUse | None = ToolUse.AUTO
    """Calls are forbidden if None."""
    is_shown: bool = False
    """True if tools stay in the prompt although calls are forbidden, to keep the cached prefix."""
    chosen: tuple[str, ...] | None = None
    """Names of the tools that may be called, or None for all."""
    several: bool = True
    path: str = "tools"
    choice_path: str = "tool_choice"
    is_legacy: bool = False
    """True for `functions`, which are answered with `function_call`."""


class ReasoningParam(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    """Tokens, -1 for no limit, or None if unspecified."""
    is_hidden: bool = False
    variables: Mapping[str, object] = {}
    said: tuple[str, ...] = ()
    """Paths of fields without meaning for a model that does not reason."""


class EarlierAnswer(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]
    vocabulary: str
    """Fingerprint of the model that produced the tokens."""


class MessageParam(msgspec.Struct, frozen=True):
    """Message for the package `prompt`, with known fields under their newest names."""

    fields: Mapping[str, object]
    own: EarlierAnswer | None = None
    path: str = ""

    @property
    def role(self) -> object:
        return self.fields["role"]

    @property
    def text(self) -> str:
        """Text with each part on a line of its own."""
        content = self.fields.get("content")
        if isinstance(content, list):
            return joined(str(part["text"]) for part in content)
        return "" if content is None else str(content)


class PictureParam(msgspec.Struct, frozen=True):
    """Image from the client. In the text of its message `mark` stands for it."""

    mark: str
    source: str
    """URL, data URI, or `upload:` and the id of a file."""
    detail: str
    at: str
    name: str
    lack: str
    """Reason why a model without vision does not get it."""
    refusal: str | None = None
    """Error message for a model without vision, or None to replace the image by text."""
    refused_at: str = ""
    """Path that this error names."""


class SoundParam(msgspec.Struct, frozen=True):
    """Audio from the client, with fields as in `PictureParam`."""

    mark: str
    source: str
    at: str
    name: str
    lack: str
    refusal: str | None = None
    refused_at: str = ""


class DocumentParam(msgspec.Struct, frozen=True):
    """File attached for its text. In the text of its message `mark` stands for it."""

    mark: str
    source: str
    title: str
    at: str
    name: str
    is_asked: bool
    """True if an unreadable file rejects the call. Others are replaced by text."""


class RecordingParam(msgspec.Struct, frozen=True):
    """Audio from the body, cut into pieces that are answered separately. `mark` stands for it in the
    prompt."""

    mark: str
    data: bytes
    at: str
    piece_s: float
    trained: Mapping[str, Sequence[MessageParam]] = {}
    """Messages that replace the conversation's only one, by architecture of models trained on them."""


MediaParam = Union[PictureParam, SoundParam]
Attached = Union[MediaParam, DocumentParam]


class TakenMedia(msgspec.Struct, frozen=True):
    mark: str
    item: MediaItem
    shape: MediaShape


class LogitBiasParam(msgspec.Struct, frozen=True):
    token: Union[int, str]
    amount: float | None
    """Forbidden if None."""


class DetailsParam(msgspec.Struct, frozen=True, kw_only=True):
    as_json: bool = False
    tokens: bool = False
    timings: bool = False
    progress: bool = False
    fields: tuple[str, ...] = ()
    """Paths of the only fields in the answer, or () for all."""


class ConversationParam(msgspec.Struct, frozen=True):
    messages: Sequence[MessageParam]
    path: str
    """Field that errors name if the prompt cannot be made or is too long."""
    may_forget: bool = False
    """True to drop the oldest messages if it is too long."""
    before: tuple[int, ...] = ()
    """Tokens of an earlier prompt with its answer, which the conversation continues."""
    template: str = ""
    """Ollama template in place of the model's own, or empty."""
    suffix: str = ""


class ConversationsParam(msgspec.Struct, frozen=True):
    each: tuple[ConversationParam, ...]
    path: str


class FileParam(msgspec.Struct, frozen=True):
    name: str
    text: str


class PromptsParam(msgspec.Struct, frozen=True):
    """Prompts as texts, token ids, or a mix."""

    prompts: Sequence[Union[str, Sequence[Union[int, str]]]]
    path: str = "prompt"
    suffix: str | None = None
    suffix_path: str = "suffix"
    files: tuple[FileParam, ...] | None = None
    """Files beside the one that is filled in, the most important last. None outside of infill."""
    answer_room: int = 0
    echo: bool = False
    is_said: bool = False
    """True for a user's message. Token ids before it are an earlier conversation."""


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True):
    """Call as its client requests it, checked as far as possible without a model."""

    id_prefix: str
    """Prefix of call ids. Without its hyphen it is the family's name in the logs."""
    prompt: Union[ConversationParam, ConversationsParam, PromptsParam]
    sampling: Sampling
    is_seeded: bool = False
    last_tokens: int | None = None
    """Number of last prompt tokens to keep, -1 for as many as fit, or None for all."""
    sent: frozenset[str] = frozenset()
    """Sampling fields that the client has sent, by the contract's names."""
    call_id: str | None = None
    """Id of the call that goes on, or None for a new one."""
    num_bytes: int = 0
    ignored: Ignored = Ignored()
    model: str | None = None
    lora: str | None = None
    stream: bool = False
    include_usage: bool = False
    n: int | None = None
    best_of: int | None = None
    max_tokens: LimitParam | None = None
    stop: tuple[str, ...] = ()
    stop_path: str = "stop"
    logprobs: int | None = None
    """Alternatives per token, or None for no log-probabilities."""
    score_prompt: bool = False
    score_end: bool = False
    """True to return the log-probability of the token that ends an answer, too."""
    form: FormParam | None = None
    tools: ToolsParam | None = None
    thinking: ReasoningParam = ReasoningParam()
    template: str | None = None
    """Name of one of the model's chat templates, or None to choose by conversation."""
    attached: tuple[Attached, ...] = ()
    recording: RecordingParam | None = None
    media: tuple[TakenMedia, ...] = ()
    user: str | None = None
    priority: str | None = None
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    cache: bool | None = None
    """False neither uses nor stores a cached answer."""
    cache_salt: str | None = None
    timeout_s: float | None = None
    biases: tuple[LogitBiasParam, ...] = ()
    """Biases that need the model's tokenizer. Others are in `sampling.logit_bias`."""
    bad_words: tuple[str, ...] = ()
    """Texts that become `sampling.bad_words` with the model's tokenizer."""
    details: DetailsParam = DetailsParam()

    @property
    def is_slow(self) -> bool:
        """True if the work may take more than a few milliseconds."""
        has_template = isinstance(self.prompt, ConversationParam) and self.prompt.template != ""
        has_program = has_template or self.form is not None or self.tools is not None
        return self.num_bytes > LONG_BODY or has_program


# -- what is attached --------------------------------------------------------------------------------------

_MARK_KEY = secrets.token_bytes(32)
"""Secret key, so that clients cannot forge marks."""


def mark_of(source: str, what: str = "picture") -> str:
    """Return the placeholder of a medium or file in its message's text."""
    digest = hashlib.blake2b(source.encode(errors="surrogatepass"), key=_MARK_KEY, digest_size=15)
    return f"{what}{digest.hexdigest()}"


MARK = re.compile(rf"{MEDIA_MARK.pattern}|document[0-9a-f]{{30}}")


UPLOAD = "upload:"


AS_IT_IS = "auto"


class PictureSource(NamedTuple):
    source: str
    detail: str

    @property
    def mark(self) -> str:
        return mark_of(f"{self.detail} {self.source}")


def picture_source(kind: str, fields: Mapping[str, object]) -> PictureSource | None:
    if kind not in ("image_url", "input_image", "image"):
        return None
    within: object = fields.get("source") if kind == "image" else fields.get("image_url")
    about = within if isinstance(within, dict) else fields
    said = about.get("detail", fields.get("detail"))
    detail = AS_IT_IS if said is None else str(said)
    if isinstance(within, dict):
        given = _of_base64(within) if within.get("type") == "base64" else within.get("url")
    else:
        given = within
    if not isinstance(given, str):
        file_id = about.get("file_id")
        given = f"{UPLOAD}{file_id}" if isinstance(file_id, str) else None
    return None if given is None else PictureSource(given, detail)


class SoundSource(NamedTuple):
    source: str

    @property
    def mark(self) -> str:
        return mark_of(self.source, "sound")


def sound_source(kind: str, fields: Mapping[str, object]) -> SoundSource | None:
    if kind not in ("input_audio", "audio_url", "audio"):
        return None
    within: object = fields.get(kind)
    found = within
    if isinstance(within, dict):
        file_id = within.get("file_id")
        upload = f"{UPLOAD}{file_id}" if isinstance(file_id, str) else None
        data = "data:;base64," if within.get("data") == "" else _as_data_uri(within.get("data"))
        found = data or within.get("url") or upload
    return SoundSource(found) if isinstance(found, str) and found else None


class DocumentSource(NamedTuple):
    source: str
    title: str

    @property
    def mark(self) -> str:
        return mark_of(f"{self.title} {self.source}", "document")


def document_source(kind: str, fields: Mapping[str, object]) -> DocumentSource | None:
    """Return the file of a content part, or None, also if the part includes its text."""
    if kind not in ("file", "input_file", "document"):
        return None
    within = {"file": "file", "document": "source"}.get(kind)
    given: object = fields if within is None else fields.get(within)
    if not isinstance(given, dict):
        return None
    titles = (fields.get("title") or given.get("filename"), fields.get("context"))
    found = [
        _as_data_uri(given.get("file_data")),
        _of_base64(given) if given.get("type") == "base64" else None,
        given.get("file_url") or given.get("url"),
        f"{UPLOAD}{given['file_id']}" if isinstance(given.get("file_id"), str) else None,
    ]
    source = next((one for one in found if isinstance(one, str) and one), None)
    title = "\n".join(one for one in titles if isinstance(one, str) and one)
    return None if source is None else DocumentSource(source, title)


def _as_data_uri(data: object) -> str | None:
    """Accept base64 alone, as some clients send it."""
    if not isinstance(data, str) or not data:
        return None
    return data if data[:5].lower() == "data:" else f"data:;base64,{data}"


def _of_base64(source: Mapping[str, object]) -> str:
    return f"data:{source.get('media_type')};base64,{source.get('data')}"
