"""The fields that bodies of several families have, with their types, by the names that APIs have given to
them.

Tags stand in angle brackets: pydantic puts them into an error's path, and `parse` takes them out again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeVar, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    PlainValidator,
    Tag,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.asking.ask import (
    AskedDocument,
    AskedPicture,
    AskedSound,
    Attached,
    DocumentSource,
    PictureSource,
    SoundSource,
    document_source,
    picture_source,
    sound_source,
)
from openai_cpu_server.contract.request import (
    COLDEST,
    COUNT,
    DRY_BASE,
    DRY_MULTIPLIER,
    LOGIT_BIAS,
    REPEAT_PENALTY,
    SHARE,
    SMALLEST,
    TEMPERATURE,
    TOP_N_SIGMA,
    TYPICAL_P,
    USAGE_PENALTY,
)
from openai_cpu_server.http.parse import Body, header_safe, is_lenient
from openai_cpu_server.http.unheeded import (
    GENERATION_HINTS,
    GENERATION_REFUSALS,
    STREAM_HINTS,
    STREAM_REFUSALS,
    Hints,
    Refusals,
)
from openai_cpu_server.prompt.template import to_json

T = TypeVar("T")


def _or_no_limit(value: object, info: ValidationInfo) -> object:
    """LM Studio's and llama-server's clients write -1 for no limit; OpenAI refuses it."""
    return None if type(value) is int and value == -1 and is_lenient(info) else value


def _text_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<list>" if isinstance(value, list) else None


def text_or_object(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<object>" if isinstance(value, dict) else None


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list):
        return None
    if not value or isinstance(value[0], str):
        return "<texts>"
    return "<token lists>" if isinstance(value[0], list) else "<tokens>"


def by_type(*known: str, tag: str | None = None) -> Discriminator:
    """Tells objects of these types from all others. `tag`: one for all of them."""

    def kind(value: object) -> str:
        name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return f"<{tag or name}>" if name in known else "<other>"

    return Discriminator(kind)


TEXT_OR_LIST = Discriminator(
    _text_or_list,
    custom_error_type="text_or_list",
    custom_error_message="Input should be a string or an array",
)

TextOrList = Annotated[Union[Annotated[str, Tag("<text>")], Annotated[T, Tag("<list>")]], TEXT_OR_LIST]
Listed = Annotated[list[T], Field(fail_fast=True)]
Some = Annotated[list[T], Field(min_length=1, fail_fast=True)]
"""One at least."""

PROMPT_KIND = Discriminator(
    _prompt_kind,
    custom_error_type="prompt_kind",
    custom_error_message="Input should be a string, a list of strings, a list of token ids, "
    "or a list of lists of token ids",
)

DOCUMENT_KIND = Discriminator(
    text_or_object,
    custom_error_type="text_or_object",
    custom_error_message="Input should be a string, or an object with 'text'",
)

NonEmpty = Annotated[str, Field(min_length=1)]
Tokens = Some[int]

MAX_STOPS = 64
"""Four times what most services take: editors that complete code send more than 16."""
Stop = Annotated[
    Union[
        Annotated[NonEmpty, Tag("<text>")],
        Annotated[list[NonEmpty], Field(max_length=MAX_STOPS, fail_fast=True), Tag("<list>")],
    ],
    TEXT_OR_LIST,
]

Prompt = Annotated[
    Union[
        Annotated[str, Tag("<text>")],
        Annotated[Some[str], Tag("<texts>")],
        Annotated[Tokens, Tag("<tokens>")],
        Annotated[Some[Tokens], Tag("<token lists>")],
    ],
    PROMPT_KIND,
]

MAX_TOOLS = 128
"""OpenAI's limit."""
_VISION = "this model has no vision and cannot see images"
_HEARING = "this model cannot hear audio"
LACKS = {
    "image_url": _VISION,
    "image": _VISION,
    "input_image": _VISION,
    "video_url": "this model has no vision and cannot see videos",
    "input_audio": _HEARING,
    "audio": _HEARING,
    "audio_url": _HEARING,
    **dict.fromkeys(("file", "input_file", "document"), "there is no file in it"),
}
"""What a model of text lacks for parts of other types."""
_WORDS = ("title", "context", "url", "tool_name", "text", "content", "output", "stdout", "stderr", "error")
"""The fields of other kinds in which something stands that a model can read."""


def words_in(value: object) -> str:
    """What a value of JSON's says in words, each text on a line of its own; "": nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(words_in, value)))
    if not isinstance(value, dict):
        return ""
    source = value.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        value = {**value, "content": source.get("data", source.get("content"))}
    return "\n".join(filter(None, (words_in(value.get(name)) for name in _WORDS)))


class ForeignKind(Body):
    """A part, a block or an item of a kind that there is not here. It is told in words, as far as it has any,
    for a conversation that has once had it must go on."""

    type: str

    @property
    def extra(self) -> dict[str, object]:
        """None of its fields is named alone."""
        return {}

    @property
    def fields(self) -> dict[str, object]:
        return self.model_extra or {}

    @property
    def lack(self) -> str:
        """Why the model is not shown it."""
        return LACKS.get(self.type, f"content of type '{self.type[:64]}' is not supported")

    @property
    def picture(self) -> PictureSource | None:
        """Where the picture is that it shows; None: it shows none."""
        return picture_source(self.type, self.fields)

    @property
    def sound(self) -> SoundSource | None:
        """Where the sound is that it plays; None: it plays none."""
        return sound_source(self.type, self.fields)

    @property
    def document(self) -> DocumentSource | None:
        """Where the file is that it attaches; None: it attaches none."""
        return document_source(self.type, self.fields)

    @property
    def is_attached(self) -> bool:
        """It is a picture, a sound or a file, and is taken as such. Of some files the text is at hand."""
        source = self.fields.get("source") if self.type == "document" else None
        has_text = isinstance(source, dict) and source.get("type") == "text"
        return has_text or (self.picture or self.sound or self.document) is not None

    def attached(self, at: str, *, is_asked: bool, refusal: str | None = None) -> Attached | None:
        """What it attaches, at this place of the body."""
        name, refused_at = self.named(at), f"{at}.type"
        if (document := self.document) is not None:
            return AskedDocument(document.mark, *document, at, name, is_asked)
        if (picture := self.picture) is not None:
            return AskedPicture(picture.mark, *picture, at, name, self.lack, refusal, refused_at)
        if (sound := self.sound) is not None:
            return AskedSound(sound.mark, sound.source, at, name, self.lack, refusal, refused_at)
        return None

    @property
    def words(self) -> str:
        """Of a picture, a sound or a file: its mark."""
        if (attached := self.picture or self.sound or self.document) is not None:
            return attached.mark
        asked = self.fields.get("input")
        told = f"{self.fields.get('name', self.type)}: {to_json(asked)}" if isinstance(asked, dict) else ""
        return "\n".join(filter(None, (told, words_in(self.fields)))) or f"[{self.lack}]"

    def named(self, at: str) -> str:
        """As a header names it that lists what was not taken as it came."""
        return f"{at} ({header_safe(self.type)})"


_LONGEST_S = 1e9
"""Some thirty years: clients that want no limit write such numbers. Clocks and timers take it."""
_TOO_MANY = COUNT.most + 1


def _no_dust(number: float) -> float:
    return 0.0 if abs(number) < SMALLEST else number


Temperature = Annotated[
    float,
    Field(ge=TEMPERATURE.least, le=TEMPERATURE.most),
    AfterValidator(lambda temperature: 0.0 if temperature < COLDEST else temperature),
]
Share = Annotated[float, Field(ge=SHARE.least, le=SHARE.most), AfterValidator(_no_dust)]
_Raised = AfterValidator(lambda number: max(number, TYPICAL_P.least))
TopNSigma = Annotated[float, Field(ge=-1, le=TOP_N_SIGMA.most)]
"""Up to 0: off."""
DryMultiplier = Annotated[float, Field(ge=DRY_MULTIPLIER.least, le=DRY_MULTIPLIER.most)]
DryBase = Annotated[float, Field(ge=DRY_BASE.least, le=DRY_BASE.most)]
MAX_BAD_WORDS = 256
BadWord = Annotated[str, Field(min_length=1, max_length=256, pattern=r"\S")]
Breaker = Annotated[str, Field(min_length=1, max_length=64)]
TypicalP = Annotated[float, Field(gt=0, le=TYPICAL_P.most), _Raised]
RepeatPenalty = Annotated[float, Field(ge=REPEAT_PENALTY.least, le=REPEAT_PENALTY.most)]
Penalty = Annotated[float, Field(ge=USAGE_PENALTY.least, le=USAGE_PENALTY.most), AfterValidator(_no_dust)]
Bias = Annotated[float, Field(ge=LOGIT_BIAS.least, le=LOGIT_BIAS.most)]
Seconds = Annotated[float, Field(ge=0.001, le=_LONGEST_S)]

TopK = Annotated[int, Field(ge=-1, lt=_TOO_MANY)]
"""0 and -1: all."""
Count = Annotated[int, Field(ge=COUNT.least, lt=_TOO_MANY)]
"""None at least."""
LastN = Annotated[
    int, Field(ge=-1, le=COUNT.most), AfterValidator(lambda number: COUNT.most if number < 0 else number)
]
"""-1: all of the context."""
Several = Annotated[int, Field(ge=1, lt=_TOO_MANY)]
"""One at least."""
Whole = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
"""Go's and Lua's clients write whole numbers as 128.0, too."""
OutputLimit = Annotated[Several | None, BeforeValidator(_or_no_limit)]
"""Of an answer's tokens."""
ScoringLimit = Annotated[Count | None, BeforeValidator(_or_no_limit)]
"""The same, where 0 asks for the prompt's scores alone."""
Budget = Annotated[int, Field(ge=-1, lt=_TOO_MANY)]
"""Tokens; -1: any number, as llama-server has it."""
TopLogprobs = Annotated[int, Field(ge=0, le=20)]
Seed = int
"""Any: it is folded into 63 bits; -1: as if none was given."""
JsonObject = dict[str, JsonValue]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


SchemaOrText = Annotated[
    Union[Annotated[str, Tag("<text>")], Annotated[JsonObject, Tag("<object>")]],
    Discriminator(
        text_or_object,
        custom_error_type="text_or_object",
        custom_error_message="Input should be a JSON Schema, as an object or as text",
    ),
]
Choices = Some[str]


class OpenBody(Body):
    """Fields that are not known here are ignored, and named."""

    is_open: ClassVar[bool] = True


def _format_kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ("grammar", "text") else None


CUSTOM_FORMAT = Discriminator(
    _format_kind,
    custom_error_type="custom_format",
    custom_error_message="Input should be an object with the type 'grammar' or 'text'",
)


class AnyText(OpenBody):
    """The format of a custom tool that takes any text."""

    type: Literal["text"]


class Syntax(OpenBody):
    """The grammar of the text that a custom tool takes."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=100_000)]


class JsonSchemaFormat(Body):
    name: Name | None = None
    description: str | None = None
    """For people; the model does not see it."""
    strict: bool | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class TagStructure(Body):
    begin: NonEmpty
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    end: NonEmpty


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    shape: Annotated[JsonObject | None, Field(alias="schema")] = None
    """llama-server's, with `json_object`: what the object must be."""
    format: JsonObject | None = None
    """vLLM's, with `structural_tag`: see `structural_tags`."""
    structures: list[JsonObject] | None = None
    """The older way: what stands behind a trigger, which its `begin` begins with."""
    triggers: list[str] | None = None
    """Between structures there is any text without these."""


class StructuredOutputs(Body):
    """vLLM's: exactly one of them."""

    json_schema: Annotated[SchemaOrText | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: SchemaOrText | None = None
    """As of `ResponseFormat`, with its type; vLLM's clients send it as text."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The levels of all families. `max` is `xhigh`."""


Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]
Notes = Annotated[dict[Key, Value], Field(max_length=16, fail_fast=True)]
LogitBias = Annotated[dict[str, Bias], Field(fail_fast=True)]


class StreamOptions(Body):
    hints: ClassVar[Hints] = STREAM_HINTS
    refusals: ClassVar[Refusals] = STREAM_REFUSALS

    include_usage: bool | None = None


def _named_adapter(value: object) -> object:
    """llama-server takes a list of ids or names with scales here."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError(
        "lora",
        "Input should be the name of an adapter (several at once, or a scale per request, are not supported)",
    )


AdapterName = Annotated[str, PlainValidator(_named_adapter, json_schema_input_type=str)]
Tier = Annotated[str, Field(max_length=64)]
"""Any name: other services have others. See `unheeded.TIERS`."""


class ProgressBody(Body):
    return_progress: bool | None = None
    """llama-server's: a stream tells how far its prompt is, until its first token."""


class SharedBody(ProgressBody):
    """Fields that mean the same in most families. `sampling` tells how to sample, `as_ask` all else."""

    model: str | None = None
    stream: bool | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    user: str | None = None
    safety_identifier: str | None = None
    """What OpenAI calls `user` now."""
    metadata: Notes | None = None
    service_tier: Tier | None = None

    # Ours, under the names that llama-server and vLLM use.
    top_k: TopK | None = None
    min_p: Share | None = None
    typical_p: TypicalP | None = None
    repeat_penalty: RepeatPenalty | None = None
    repeat_last_n: LastN | None = None
    top_n_sigma: TopNSigma | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    dry_multiplier: DryMultiplier | None = None
    dry_base: DryBase | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=COUNT.most)] | None = None
    dry_sequence_breakers: Annotated[list[Breaker], Field(max_length=64, fail_fast=True)] | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    """vLLM's: texts that the answer does not have, as far as they are written by the tokens of their own."""
    ignore_eos: bool | None = None
    lora: AdapterName | None = None
    """An adapter of the model; the same as `model: "MODEL:ADAPTER"`."""
    priority: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache: bool | None = None
    """`false`: neither answer from the cache of answers nor keep this answer there."""
    timeout: Seconds | None = None
    """Seconds that the call may take, waiting included."""

    # What the output must look like; at most one of these, and of what else a family has for that.
    grammar: str | None = None
    regex: str | None = None
    choice: Choices | None = None


class GenerationBody(SharedBody):
    """What chat, text completions and `/generate` have beside that."""

    hints: ClassVar[Hints] = GENERATION_HINTS
    refusals: ClassVar[Refusals] = GENERATION_REFUSALS

    stream_options: StreamOptions | None = None
    n: Several | None = None
    stop: Stop | None = None
    repetition_penalty: RepeatPenalty | None = None
    """vLLM's: a `repeat_penalty` that looks at the whole prompt and answer."""
    response_format: ResponseFormat | None = None
    json_schema: JsonObject | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
