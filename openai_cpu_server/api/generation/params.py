"""Requests of all families in one form.

Parts that may be rejected once the model is known carry the client's path (`text.format.schema`) for errors.
Fields without a path have one name in all families.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Union

import msgspec
from pydantic import JsonValue

from openai_cpu_server.contract.grammar import GrammarSource
from openai_cpu_server.contract.media import MediaItem, MediaShape
from openai_cpu_server.contract.request import COUNT, Sampling
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.models.defaults import SamplingValues
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars
from openai_cpu_server.prompt.template import MEDIA_MARK, joined_texts

JsonObject = dict[str, JsonValue]
LONG_BODY = 64 * 1024
"""Bytes above which a body may take more than a few milliseconds."""


class LimitParam(msgspec.Struct, frozen=True):
    tokens: int
    path: str
    is_ceiling: bool = False
    """True if a smaller rest of the context is acceptable."""
    is_unlimited: bool = False
    """True if the client has named none, or all of the context: its key then reserves nothing."""

    @classmethod
    def ceiling(cls, tokens: int, path: str) -> LimitParam:
        """`tokens`: negative for a client that wants all that the context leaves."""
        return cls(COUNT.most if tokens < 0 else tokens, path, is_ceiling=True, is_unlimited=tokens < 0)


class FormParam(msgspec.Struct, frozen=True):
    path: str
    make: Callable[[ModelGrammars], CheckedGrammar]
    """Compiler of the grammar. Raises InvalidRequest."""
    field: str
    """First field on the path, or the object in it that selects the form."""


class ToolUse(enum.Enum):
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """Exactly one call of one function."""


class CustomGrammar(msgspec.Struct, frozen=True):
    syntax: GrammarSource
    definition: str
    path: str


class FunctionParam(msgspec.Struct, frozen=True):
    name: str
    path: str
    schema_path: str
    description: str | None = None
    parameters: JsonObject | None = None
    """JSON Schema. That of a custom tool describes its text as the only parameter."""
    is_strict: bool = False
    is_custom: bool = False
    grammar: CustomGrammar | None = None
    """Grammar of a custom tool's text, or None for any text."""


class ToolsParam(msgspec.Struct, frozen=True, kw_only=True):
    functions: tuple[FunctionParam, ...]
    use: ToolUse | None = ToolUse.AUTO
    """Calls are forbidden if None."""
    is_shown: bool = False
    """True if tools stay in the prompt although calls are forbidden, for the cached prefix."""
    chosen: tuple[str, ...] | None = None
    """Names of the tools that may be called, or None for all."""
    several: bool = True
    path: str = "tools"
    choice_path: str = "tool_choice"
    is_legacy: bool = False
    """True for `functions`, which are answered with `function_call`."""

    @property
    def callable(self) -> tuple[FunctionParam, ...]:
        return tuple(each for each in self.functions if self.chosen is None or each.name in self.chosen)

    @property
    def shown(self) -> list[dict[str, object]]:
        """Descriptions for the chat template."""
        return [
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description or "",
                    "parameters": function.parameters or {"type": "object", "properties": {}},
                },
            }
            for function in self.functions
        ]


class ReasoningParam(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    """Tokens, -1 for no limit, or None if unspecified."""
    is_hidden: bool = False
    variables: Mapping[str, object] = {}
    paths: tuple[str, ...] = ()
    """Fields without meaning for a model that does not reason."""


class EarlierAnswer(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]
    vocabulary: str
    """Fingerprint of the model that produced the tokens."""


class MessageParam(msgspec.Struct, frozen=True):
    """Message with known fields under their newest names."""

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
            return joined_texts(str(part["text"]) for part in content)
        return "" if content is None else str(content)


class AttachmentKind(enum.Enum):
    PICTURE = "picture"
    SOUND = "sound"
    DOCUMENT = "document"
    """File attached for its text."""


class AttachmentSource(msgspec.Struct, frozen=True, dict=True):
    kind: AttachmentKind
    url: str
    """URL, data URI, `upload:` and the id of a file, or base64 alone."""
    label: str = ""
    """Detail of a picture, or title of a document."""
    is_base64: bool = False
    """True if `url` is base64 alone. A data URI of 20 MB would hold the interpreter's lock for 15 ms."""

    @functools.cached_property
    def mark(self) -> str:
        """Cached, because hashing a data URI of 20 MB takes 40 ms."""
        return mark_of(self.kind, self.label, str(self.is_base64), self.url)


class Attachment(msgspec.Struct, frozen=True):
    """Media item or file, for which `mark` stands in the text of its message."""

    source: AttachmentSource
    at: str
    name: str
    is_latest: bool = False
    """True if an unreadable document rejects the call. Earlier ones become text."""
    lack: str = ""
    """Reason why a model that cannot see or hear does not get it."""
    refusal: str | None = None
    """Error message for such a model, or None to replace the attachment by text."""
    refused_at: str = ""

    def __post_init__(self) -> None:
        _ = self.mark  # computed by the thread that reads the body, not by the event loop

    @property
    def mark(self) -> str:
        return self.source.mark


class RecordingParam(msgspec.Struct, frozen=True):
    """Audio that is cut into pieces, which are answered separately. In the prompt `mark` stands for it."""

    mark: str
    data: bytes
    at: str
    piece_s: float
    trained: Mapping[str, Sequence[MessageParam]] = {}
    """Messages in place of the conversation's only one, by architecture trained on them."""


class TakenMedia(msgspec.Struct, frozen=True):
    mark: str
    item: MediaItem
    shape: MediaShape


class LogitBiasParam(msgspec.Struct, frozen=True):
    token: Union[int, str]
    amount: float | None
    """Forbidden if None."""


class SamplingParam(msgspec.Struct, frozen=True, kw_only=True):
    values: Sampling
    sent: frozenset[str]
    """Fields that the client has sent, by the contract's names."""
    is_seeded: bool = False
    defaults: SamplingValues | None = None
    """Values for fields that neither client nor model has, as the family's clients expect."""
    samplers: tuple[str, ...] | None = None
    """Samplers to apply, or None for all."""
    biases: tuple[LogitBiasParam, ...] = ()
    """Biases that need the model's tokenizer. Others are in `values.logit_bias`."""
    bad_words: tuple[str, ...] = ()
    """Texts that become `values.bad_words` with the model's tokenizer."""


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
    may_forget: bool = False
    before: tuple[int, ...] = ()
    """Tokens of an earlier prompt and answer, which the conversation continues."""
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
    prompts: Sequence[Union[str, Sequence[Union[int, str]]]]
    path: str = "prompt"
    suffix: str | None = None
    suffix_path: str = "suffix"
    files: tuple[FileParam, ...] | None = None
    """Files beside the one that is filled in, the most important last. None outside of infill."""
    answer_room: int = 0
    echo: bool = False
    is_user_message: bool = False
    """True for a user's message. Token ids before it are an earlier conversation."""


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True):
    """Call as its client requests it, checked as far as possible without a model."""

    id_prefix: str
    """Prefix of call ids. Without its hyphen it is the family's name in the logs."""
    prompt: Union[ConversationParam, ConversationsParam, PromptsParam]
    sampling: SamplingParam
    last_tokens: int | None = None
    """Last prompt tokens to keep, -1 for as many as fit, or None for all."""
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
    """True to return the log-probability of the token that ends an answer."""
    form: FormParam | None = None
    tools: ToolsParam | None = None
    thinking: ReasoningParam = ReasoningParam()
    template: str | None = None
    """Name of a chat template of the model, or None to choose by conversation."""
    attached: tuple[Attachment, ...] = ()
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
    details: DetailsParam = DetailsParam()

    @property
    def is_slow(self) -> bool:
        """True if the work may take more than a few milliseconds."""
        has_template = isinstance(self.prompt, ConversationParam) and self.prompt.template != ""
        has_program = has_template or self.form is not None or self.tools is not None
        return self.num_bytes > LONG_BODY or has_program


# -- attachments -------------------------------------------------------------------------------------------

UPLOAD = "upload:"
AUTO_DETAIL = "auto"
_MARK_KEY = secrets.token_bytes(32)
"""Secret key, so that clients cannot forge marks."""
MARK = re.compile(rf"{MEDIA_MARK.pattern}|document[0-9a-f]{{30}}")
CHARS_AT_ONCE = 64 * 1024
"""20 MB at once would hold the interpreter's lock for tens of milliseconds."""


def mark_of(kind: AttachmentKind, *texts: str) -> str:
    """Return the placeholder of an attachment in its message's text."""
    digest = hashlib.blake2b(key=_MARK_KEY, digest_size=15)
    for text in texts:
        digest.update(b"%d " % len(text))
        for start in range(0, len(text), CHARS_AT_ONCE):
            digest.update(text[start : start + CHARS_AT_ONCE].encode(errors="surrogatepass"))
    return f"{kind.value}{digest.hexdigest()}"


def attachment_source(part_type: str, fields: Mapping[str, object]) -> AttachmentSource | None:
    """Return None if the part has no attachment or includes a document's text."""
    match part_type:
        case "image_url" | "input_image" | "image" | "computer_screenshot":
            return _picture(fields, fields.get("source" if part_type == "image" else "image_url"))
        case "input_audio" | "audio_url" | "audio":
            return _sound(fields.get(part_type))
        case "file" | "document":
            return _document(fields, fields.get("file" if part_type == "file" else "source"))
        case "input_file":
            return _document(fields, fields)
    return None


def _picture(fields: Mapping[str, object], image: object) -> AttachmentSource | None:
    details = image if isinstance(image, dict) else fields
    url = image
    if isinstance(image, dict):
        url = _of_base64(image) if image.get("type") == "base64" else image.get("url")
    if not isinstance(url, str):
        url = _of_upload(details)
    detail = details.get("detail", fields.get("detail"))
    label = AUTO_DETAIL if detail is None else str(detail)
    return AttachmentSource(AttachmentKind.PICTURE, url, label) if isinstance(url, str) else None


def _sound(audio: object) -> AttachmentSource | None:
    url = audio
    if isinstance(audio, dict):
        data = audio.get("data")
        if isinstance(data, str) and data[:5].lower() != "data:":
            return AttachmentSource(AttachmentKind.SOUND, data, is_base64=True)
        url = data if isinstance(data, str) else audio.get("url") or _of_upload(audio)
    return AttachmentSource(AttachmentKind.SOUND, url) if isinstance(url, str) and url else None


def _document(fields: Mapping[str, object], file: object) -> AttachmentSource | None:
    if not isinstance(file, Mapping):
        return None
    urls = [
        _as_data_uri(file.get("file_data")),
        _of_base64(file) if file.get("type") == "base64" else None,
        file.get("file_url") or file.get("url"),
        _of_upload(file),
    ]
    url = next((url for url in urls if isinstance(url, str) and url), None)
    titles = (fields.get("title") or file.get("filename"), fields.get("context"))
    title = "\n".join(title for title in titles if isinstance(title, str) and title)
    return None if url is None else AttachmentSource(AttachmentKind.DOCUMENT, url, title)


def _as_data_uri(data: object) -> str | None:
    """Accept base64 alone, as some clients send it."""
    if not isinstance(data, str) or not data:
        return None
    return data if data[:5].lower() == "data:" else f"data:;base64,{data}"


def _of_base64(source: Mapping[str, object]) -> str:
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def _of_upload(fields: Mapping[str, object]) -> str | None:
    file_id = fields.get("file_id")
    return f"{UPLOAD}{file_id}" if isinstance(file_id, str) else None
