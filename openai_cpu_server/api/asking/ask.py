"""What a client asks for, in the one language that the bodies of all families are read into.

What may be refused later, when the model is known, carries the path by which the client called it
(`text.format.schema`), so that an error names what was sent and is never renamed. Fields without a path have
one name in all families.
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
"""More bytes may be more than some milliseconds of work."""


class AskedLimit(msgspec.Struct, frozen=True):
    """The most output tokens of one sequence."""

    tokens: int
    path: str
    is_ceiling: bool = False
    """What the context leaves is enough; else there must be room for all of them."""
    is_ours: bool = False
    """The client has named none: nothing of its key's limits is held back for it."""


class AskedForm(msgspec.Struct, frozen=True):
    """The one form that the answer must have."""

    path: str
    make: Callable[[ModelGrammars, str], CheckedGrammar]
    """Makes its grammar; the text is the path, for errors. Raises InvalidRequest."""
    field: str
    """The first field on that path, or the object in it that says which form is meant."""


class ToolUse(enum.Enum):
    AUTO = "auto"
    """Text, or calls."""
    REQUIRED = "required"
    NAMED = "named"
    """One call of the one function."""


class AskedText(msgspec.Struct, frozen=True):
    """The text that a custom tool takes."""

    source: GrammarSource | None = None
    """In what its grammar is written; None: any text."""
    definition: str = ""
    path: str = ""


class AskedFunction(msgspec.Struct, frozen=True):
    """A function of the client's that the model may call."""

    name: str
    path: str
    schema_path: str
    description: str | None = None
    parameters: JsonObject | None = None
    is_strict: bool = False
    text: AskedText | None = None
    """It is a custom tool; `parameters` show that as the one that a function has."""


class AskedTools(msgspec.Struct, frozen=True, kw_only=True):
    functions: tuple[AskedFunction, ...]
    use: ToolUse | None = ToolUse.AUTO
    """None: none of them may be called."""
    is_shown: bool = False
    """They are shown also where none may be called, so that the prompt begins as those before it."""
    chosen: tuple[str, ...] | None = None
    """The names of those that may be called; None: all."""
    several: bool = True
    path: str = "tools"
    choice_path: str = "tool_choice"
    is_legacy: bool = False
    """They were asked for by `functions`, and are answered with `function_call`."""


class AskedThinking(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about the model's thinking."""

    is_on: bool | None = None
    """None: nothing is said."""
    effort: str | None = None
    budget: int | None = None
    """Tokens; -1: any number; None: nothing is said."""
    is_hidden: bool = False
    variables: Mapping[str, object] = {}
    """For the chat template."""
    said: tuple[str, ...] = ()
    """The paths of what has no meaning where a model does not think."""


class EarlierAnswer(msgspec.Struct, frozen=True):
    """What the model wrote in an earlier turn."""

    tokens: tuple[int, ...]
    vocabulary: str
    """The model whose tokens these are."""


class AskedMessage(msgspec.Struct, frozen=True):
    """A message as the room `prompt` takes it: known fields only, under their newest names."""

    fields: Mapping[str, object]
    own: EarlierAnswer | None = None
    """The message is this answer of before, and nothing else."""
    path: str = ""
    """Where the client has said it."""

    @property
    def role(self) -> object:
        return self.fields["role"]

    @property
    def text(self) -> str:
        """Parts stand on lines of their own."""
        content = self.fields.get("content")
        if isinstance(content, list):
            return joined(str(part["text"]) for part in content)
        return "" if content is None else str(content)


class AskedPicture(msgspec.Struct, frozen=True):
    """A picture that a client shows. In the text of its message `mark` stands for it."""

    mark: str
    source: str
    """A URL, also one that has the data; or an upload."""
    detail: str
    """As the client says it."""
    at: str
    """Its path in the body."""
    name: str
    """As a header names it where it is told in words."""
    lack: str
    """Why a model without eyes is not shown it."""
    refusal: str | None = None
    """What is said where such a model is asked about it; None: it is told in words."""
    refused_at: str = ""
    """The path that is blamed for that."""


class AskedSound(msgspec.Struct, frozen=True):
    """A sound that a client plays; as a picture."""

    mark: str
    source: str
    at: str
    name: str
    lack: str
    refusal: str | None = None
    refused_at: str = ""


class AskedDocument(msgspec.Struct, frozen=True):
    """A file that a client attaches for its text. In the text of its message `mark` stands for it."""

    mark: str
    source: str
    """As of a picture."""
    title: str
    """Its name, as the client says; "": it says none."""
    at: str
    name: str
    """As a header names it where it cannot be read."""
    is_asked: bool
    """It belongs to the question: who cannot read it refuses the call. Others are told in words."""


class AskedRecording(msgspec.Struct, frozen=True):
    """A sound that has come with the body and may be long. It is cut into pieces, each of which gets an
    answer of its own to the same words. In the text of the one conversation `mark` stands for it."""

    mark: str
    data: bytes
    at: str
    """Its field."""
    piece_s: float
    """So long a piece is at most."""
    trained: Mapping[str, Sequence[AskedMessage]] = {}
    """Messages in place of the conversation's one, by the architecture of models that were trained to
    these."""


AskedMedia = Union[AskedPicture, AskedSound]
Attached = Union[AskedMedia, AskedDocument]


class TakenMedia(msgspec.Struct, frozen=True):
    """A picture or a sound as a model takes it. In the text of a message `mark` stands for it."""

    mark: str
    item: MediaItem
    shape: MediaShape


class AskedBias(msgspec.Struct, frozen=True):
    """How much likelier a token is made, or each of a text's."""

    token: Union[int, str]
    amount: float | None
    """None: it never comes."""


class AskedDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer tells beside its text, by families that do so."""

    as_json: bool = False
    """The text as JSON, too."""
    tokens: bool = False
    """The answer's token ids."""
    timings: bool = False
    """Each chunk says how long it took so far."""
    progress: bool = False
    """A stream says how far the prompt is computed."""
    fields: tuple[str, ...] = ()
    """The paths of the only fields that are told; (): all."""


class AskedConversation(msgspec.Struct, frozen=True):
    messages: Sequence[AskedMessage]
    path: str
    """The field that is blamed for a prompt that cannot be made, or is too long."""
    may_forget: bool = False
    """Where it is too long, what is oldest is left out."""
    before: tuple[int, ...] = ()
    """Tokens that it goes on from: an earlier prompt with its answer."""
    template: str = ""
    """Ollama's, which writes the prompt in place of the model's own; "": nothing is said."""
    suffix: str = ""
    """What follows behind the answer, for such a template."""


class AskedConversations(msgspec.Struct, frozen=True):
    """Several, each of which gets an answer of its own."""

    each: tuple[AskedConversation, ...]
    path: str


class AskedFile(msgspec.Struct, frozen=True):
    """A file beside the one that is filled in."""

    name: str
    text: str


class AskedTexts(msgspec.Struct, frozen=True):
    """Texts to go on with, or their token ids, or both in turns."""

    prompts: Sequence[Union[str, Sequence[Union[int, str]]]]
    path: str = "prompt"
    suffix: str | None = None
    suffix_path: str = "suffix"
    files: tuple[AskedFile, ...] | None = None
    """Those beside the one that is filled in, the most important last: as many as there is room for.
    None: nothing is said of any."""
    answer_room: int = 0
    """So many tokens are kept free of such files."""
    echo: bool = False
    is_said: bool = False
    """The one text is what a user says, if the model can chat; token ids before it are a conversation's."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One call as its client asks for it: checked as far as that goes without a model."""

    id_prefix: str
    """What the ids of the family's calls begin with, which without a hyphen is its name in the logs."""
    prompt: Union[AskedConversation, AskedConversations, AskedTexts]
    sampling: Sampling
    """Its token ids are not known to be the model's."""
    is_seeded: bool = False
    """The client has named the seed."""
    last_tokens: int | None = None
    """So many of the prompt's last tokens are kept; -1: as many as there is room for; None: all, or it is
    refused."""
    sent: frozenset[str] = frozenset()
    """What of the sampling it has named, by the contract's names."""
    call_id: str | None = None
    """The call goes on that had this id; None: a new one."""
    num_bytes: int = 0
    """The size of its body, and of what it goes on from."""
    ignored: Ignored = Ignored()
    model: str | None = None
    lora: str | None = None
    """An adapter of the model."""
    stream: bool = False
    include_usage: bool = False
    n: int | None = None
    best_of: int | None = None
    max_tokens: AskedLimit | None = None
    stop: tuple[str, ...] = ()
    stop_path: str = "stop"
    logprobs: int | None = None
    """Alternatives to show beside each token; None: no log-probabilities."""
    score_prompt: bool = False
    score_end: bool = False
    """Log-probabilities are told of the token that ends an answer, too."""
    form: AskedForm | None = None
    """None: free text."""
    tools: AskedTools | None = None
    thinking: AskedThinking = AskedThinking()
    template: str | None = None
    """The name of one of the model's chat templates; None: the one that suits the conversation."""
    attached: tuple[Attached, ...] = ()
    recording: AskedRecording | None = None
    """The prompt is about this, and the model must hear."""
    media: tuple[TakenMedia, ...] = ()
    """The pictures and sounds among them as its model takes them."""
    user: str | None = None
    priority: str | None = None
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    cache: bool | None = None
    """False: no answer of before, and nobody else is to get this one."""
    cache_salt: str | None = None
    timeout_s: float | None = None
    """The call may take so long, waiting included."""
    biases: tuple[AskedBias, ...] = ()
    """What the model's tokens must be known for. `sampling.logit_bias` has the others."""
    bad_words: tuple[str, ...] = ()
    """Likewise; `sampling.bad_words` has none yet."""
    details: AskedDetails = AskedDetails()

    @property
    def is_slow(self) -> bool:
        """It may take more than some milliseconds: it is long, or has something to compile."""
        has_template = isinstance(self.prompt, AskedConversation) and self.prompt.template != ""
        has_program = has_template or self.form is not None or self.tools is not None
        return self.num_bytes > LONG_BODY or has_program


# -- what is attached --------------------------------------------------------------------------------------

_MARK_KEY = secrets.token_bytes(32)
"""Nobody else knows what stands for a picture or a sound in a text."""


def mark_of(source: str, what: str = "picture") -> str:
    """What stands for it in its message's text, until it is known what a model sees, or a file says."""
    digest = hashlib.blake2b(source.encode(errors="surrogatepass"), key=_MARK_KEY, digest_size=15)
    return f"{what}{digest.hexdigest()}"


MARK = re.compile(rf"{MEDIA_MARK.pattern}|document[0-9a-f]{{30}}")


UPLOAD = "upload:"
"""A picture's source that begins so is the id of a file that the client has uploaded."""


AS_IT_IS = "auto"
"""The detail that clients mean who name none."""


class PictureSource(NamedTuple):
    source: str
    detail: str

    @property
    def mark(self) -> str:
        return mark_of(f"{self.detail} {self.source}")


def picture_source(kind: str, fields: Mapping[str, object]) -> PictureSource | None:
    """Where a part of this kind says that its picture is; None: it shows none."""
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
    """Where a part of this kind says that its sound is; None: it plays none."""
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
    """Where a part of this kind says that its file is; None: it has none, or has its text at hand."""
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
    """Some clients leave out all that is before the base64."""
    if not isinstance(data, str) or not data:
        return None
    return data if data[:5].lower() == "data:" else f"data:;base64,{data}"


def _of_base64(source: Mapping[str, object]) -> str:
    return f"data:{source.get('media_type')};base64,{source.get('data')}"
