from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeVar, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation.params import (
    Attachment,
    AttachmentSource,
    JsonObject,
    attachment_source,
)
from openai_cpu_server.api.generation.sampling import Samplers
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
from openai_cpu_server.http import ignored_params
from openai_cpu_server.http.parse import Body, by_type, by_value, header_safe, is_lenient
from openai_cpu_server.prompt.template import to_json

T = TypeVar("T")


def _or_no_limit(value: object, info: ValidationInfo) -> object:
    """Accept -1 in lenient mode, as clients of LM Studio and llama-server send it."""
    return None if type(value) is int and value == -1 and is_lenient(info) else value


TEXT_OR_LIST = by_value("text_or_list", "Input should be a string or an array")
TextOrList = Annotated[Union[str, T], TEXT_OR_LIST]
ListOf = Annotated[list[T], Field(fail_fast=True)]
NonEmptyList = Annotated[list[T], Field(min_length=1, fail_fast=True)]


def _prompt_kind(value: object) -> str | None:
    if not isinstance(value, list):
        return "<text>" if isinstance(value, str) else None
    if not value or isinstance(value[0], str):
        return "<texts>"
    return "<token lists>" if isinstance(value[0], list) else "<tokens>"


PROMPT_KIND = Discriminator(
    _prompt_kind,
    custom_error_type="prompt_kind",
    custom_error_message="Input should be a string, a list of strings, a list of token ids, "
    "or a list of lists of token ids",
)

NonEmpty = Annotated[str, Field(min_length=1)]
TokenIds = NonEmptyList[int]

MAX_STOPS = 64
"""Completing editors send more than the usual 16."""
Stop = Annotated[
    Union[NonEmpty, Annotated[list[NonEmpty], Field(max_length=MAX_STOPS, fail_fast=True)]], TEXT_OR_LIST
]

CompletionPrompt = Annotated[
    Union[
        Annotated[str, Tag("<text>")],
        Annotated[NonEmptyList[str], Tag("<texts>")],
        Annotated[TokenIds, Tag("<tokens>")],
        Annotated[NonEmptyList[TokenIds], Tag("<token lists>")],
    ],
    PROMPT_KIND,
]

MAX_TOOLS = 128
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
    **dict.fromkeys(("file", "input_file", "document"), "it contains no file"),
}
_EMPTY = {
    **dict.fromkeys(("image_url", "image", "input_image"), "it contains no image"),
    **dict.fromkeys(("input_audio", "audio", "audio_url"), "it contains no audio"),
    **dict.fromkeys(("file", "input_file", "document"), "it contains no file"),
}
"""Parts without content, whatever the model takes."""
_WORDS = ("title", "context", "url", "tool_name", "text", "content", "output", "stdout", "stderr", "error")


def words_in(value: object, *, has_marks: bool = False) -> str:
    """`has_marks`: attachments in its `content` have their marks there."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        words = partial(words_in, has_marks=has_marks)
        return "\n".join(filter(None, ((has_marks and _mark_in(one)) or words(one) for one in value)))
    if not isinstance(value, dict):
        return ""
    source = value.get("source")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        value = {**value, "content": source.get("data", source.get("content"))}
    return "\n".join(filter(None, (words_in(value.get(name), has_marks=has_marks) for name in _WORDS)))


def _mark_in(part: object) -> str:
    source = source_in(part)
    return "" if source is None else source.mark


def source_in(part: object) -> AttachmentSource | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return attachment_source(kind, part) if isinstance(part, dict) and isinstance(kind, str) else None


class ForeignKind(Body):
    """Part, block or item of an unsupported kind, which text replaces so that the conversation can go on."""

    type: str

    @property
    def extra(self) -> dict[str, object]:
        return {}

    @property
    def fields(self) -> dict[str, object]:
        return self.model_extra or {}

    @property
    def emptiness(self) -> str | None:
        """Return what a part of a supported kind lacks, or None."""
        is_whole = self.attachment is not None or self.is_attached or words_in(self.fields) != ""
        return None if is_whole else _EMPTY.get(self.type)

    @property
    def lack(self) -> str:
        return self.emptiness or LACKS.get(self.type, f"content of type '{self.type[:64]}' is not supported")

    @functools.cached_property
    def attachment(self) -> AttachmentSource | None:
        return attachment_source(self.type, self.fields)

    @property
    def is_attached(self) -> bool:
        source = self.fields.get("source") if self.type == "document" else None
        has_text = isinstance(source, dict) and source.get("type") == "text"
        return has_text or any(self.attached("", is_latest=False))

    def attached(self, at: str, *, is_latest: bool, refusal: str | None = None) -> Iterator[Attachment]:
        """`refusal`: error for a model without the sense."""
        if (source := self.attachment) is not None:
            yield Attachment(source, at, self.named(at), is_latest, self.lack, refusal, f"{at}.type")
            return
        holder = self.fields.get("source")
        where = f"{at}.source" if isinstance(holder, dict) else at
        content = (holder if isinstance(holder, dict) else self.fields).get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if (inner := source_in(part)) is not None:
                place, kind = f"{where}.content[{number}]", part["type"]
                yield Attachment(inner, place, f"{place} ({kind})", is_latest, LACKS[kind])

    @property
    def words(self) -> str:
        """Text with marks for what `attached` yields."""
        return self.text(has_marks=True) if self.attachment is None else self.attachment.mark

    def text(self, *, has_marks: bool = False) -> str:
        arguments, name = self.fields.get("input"), self.fields.get("name", self.type)
        call = f"{name}: {to_json(arguments)}" if isinstance(arguments, dict) else ""
        return "\n".join(filter(None, (call, words_in(self.fields, has_marks=has_marks)))) or f"[{self.lack}]"

    def named(self, at: str) -> str:
        return f"{at} ({header_safe(self.type)})"


_LONGEST_S = 1e9
"""Clients send such numbers for no limit, and timers accept them."""
_TOO_MANY = COUNT.most + 1


def _no_dust(number: float) -> float:
    return 0.0 if abs(number) < SMALLEST else number


Temperature = Annotated[
    float,
    Field(ge=TEMPERATURE.least, le=TEMPERATURE.most),
    AfterValidator(lambda temperature: 0.0 if temperature < COLDEST else temperature),
]
Probability = Annotated[float, Field(ge=SHARE.least, le=SHARE.most), AfterValidator(_no_dust)]
_BadWord = Annotated[str, Field(min_length=1, max_length=256, pattern=r"\S")]
Breaker = Annotated[str, Field(min_length=1, max_length=64)]
TypicalP = Annotated[
    float,
    Field(gt=0, le=TYPICAL_P.most),
    AfterValidator(lambda number: max(number, TYPICAL_P.least)),
]
RepeatPenalty = Annotated[float, Field(ge=REPEAT_PENALTY.least, le=REPEAT_PENALTY.most)]
Penalty = Annotated[float, Field(ge=USAGE_PENALTY.least, le=USAGE_PENALTY.most), AfterValidator(_no_dust)]
Bias = Annotated[float, Field(ge=LOGIT_BIAS.least, le=LOGIT_BIAS.most)]
Seconds = Annotated[float, Field(ge=0.001, le=_LONGEST_S)]

TopK = Annotated[int, Field(ge=-1, lt=_TOO_MANY)]
"""0 or -1 for all."""
Count = Annotated[int, Field(ge=COUNT.least, lt=_TOO_MANY)]
LastN = Annotated[
    int,
    Field(ge=-1, le=COUNT.most),
    AfterValidator(lambda number: COUNT.most if number < 0 else number),
]
"""-1 for the whole context."""
PositiveCount = Annotated[int, Field(ge=1, lt=_TOO_MANY)]
IntegralFloat = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
"""Accept 128.0, as clients in Go and Lua send it."""
OutputLimit = Annotated[PositiveCount | None, BeforeValidator(_or_no_limit)]
ScoringLimit = Annotated[Count | None, BeforeValidator(_or_no_limit)]
"""0 requests only the prompt's scores."""
ThinkingBudget = Annotated[int, Field(ge=-1, lt=_TOO_MANY)]
"""Tokens, or -1 for no limit as in llama-server."""
TopLogprobs = Annotated[int, Field(ge=0, le=20)]
Seed = int
"""Any integer, reduced to 63 bits. -1 counts as absent."""
_NAMING = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("default", "const")


def _without_nulls(schema: object) -> object:
    """Clients in Go write empty lists and maps as null."""
    if isinstance(schema, list):
        return [_without_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[object, object] = {}
    for name, value in schema.items():
        if name in _NAMING and isinstance(value, dict):
            found[name] = {key: _without_nulls(each) for key, each in value.items()}
        elif name in _VALUES or (name in ("enum", "examples") and value is not None):
            found[name] = value
        elif value is not None:
            found[name] = _without_nulls(value)
    return found


ToolSchema = Annotated[JsonObject, BeforeValidator(_without_nulls)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
SchemaOrText = Annotated[
    Union[str, JsonObject],
    by_value("text_or_object", "Input should be a JSON Schema, as an object or as text"),
]
Choices = NonEmptyList[str]


class OpenBody(Body):
    """Body whose unknown fields are ignored, and named in a header."""

    is_open: ClassVar[bool] = True


CUSTOM_FORMAT = by_type("custom_format", "Input should be an object with the type 'grammar' or 'text'")


class AnyText(OpenBody):
    type: Literal["text"]


class Syntax(OpenBody):
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=100_000)]


class JsonSchemaFormat(Body):
    name: Name | None = None
    description: str | None = None
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
    """Schema of `json_object`, as in llama-server."""
    format: JsonObject | None = None
    structures: list[JsonObject] | None = None
    """Older syntax, in which each `begin` starts with a trigger."""
    triggers: list[str] | None = None
    """Strings that text between structures does not contain."""


class StructuredOutputs(Body):
    json_schema: Annotated[SchemaOrText | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: SchemaOrText | None = None
    """Text from clients of vLLM."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""`max` means `xhigh`."""
_NoteKey = Annotated[str, Field(max_length=64)]
_NoteValue = Annotated[str, Field(max_length=512)]
Notes = Annotated[dict[_NoteKey, _NoteValue], Field(max_length=16, fail_fast=True)]


class StreamOptions(Body):
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.STREAM_IGNORED
    unsupported: ClassVar[ignored_params.UnsupportedParams] = ignored_params.STREAM_UNSUPPORTED

    include_usage: bool | None = None


def _named_adapter(value: object) -> object:
    if value is None or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError(
        "lora",
        "Input should be the name of an adapter (several at once, or a scale per request, are not supported)",
    )


AdapterName = Annotated[str, PlainValidator(_named_adapter, json_schema_input_type=str)]
Tier = Annotated[str, Field(max_length=64)]
"""Any name, because other services have others. See `ignored_params.TIERS`."""


class ProgressBody(Body):
    return_progress: bool | None = None


class SharedBody(ProgressBody):
    model: str | None = None
    stream: bool | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Field(fail_fast=True)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Notes | None = None
    service_tier: Tier | None = None

    # Ours, under the names that llama-server and vLLM use.
    top_k: TopK | None = None
    min_p: Probability | None = None
    typical_p: TypicalP | None = None
    repeat_penalty: RepeatPenalty | None = None
    repeat_last_n: LastN | None = None
    top_n_sigma: Annotated[float, Field(ge=-1, le=TOP_N_SIGMA.most)] | None = None
    """Off up to 0."""
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dry_multiplier: Annotated[float, Field(ge=DRY_MULTIPLIER.least, le=DRY_MULTIPLIER.most)] | None = None
    dry_base: Annotated[float, Field(ge=DRY_BASE.least, le=DRY_BASE.most)] | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=COUNT.most)] | None = None
    dry_sequence_breakers: Annotated[list[Breaker], Field(max_length=64, fail_fast=True)] | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    bad_words: Annotated[list[_BadWord], Field(max_length=256, fail_fast=True)] | None = None
    """A text's usual tokens alone are forbidden, as in vLLM."""
    ignore_eos: bool | None = None
    lora: AdapterName | None = None
    priority: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache: bool | None = None
    """False neither uses nor stores a cached answer."""
    timeout: Seconds | None = None

    # Formats of the output: at most one of these and of the API's own fields for it.
    grammar: str | None = None
    regex: str | None = None
    choice: Choices | None = None


class GenerationBody(SharedBody):
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.GENERATION_IGNORED
    unsupported: ClassVar[ignored_params.UnsupportedParams] = ignored_params.GENERATION_UNSUPPORTED

    stream_options: StreamOptions | None = None
    n: PositiveCount | None = None
    stop: Stop | None = None
    repetition_penalty: RepeatPenalty | None = None
    """vLLM's `repeat_penalty` over the whole prompt and answer."""
    response_format: ResponseFormat | None = None
    json_schema: JsonObject | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


class OpenRouterReasoning(OpenBody):
    effort: Effort | None = None
    max_tokens: Count | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ThinkingSwitch(OpenBody):
    """Anthropic's object, also of DeepSeek, GLM and Kimi in chat completions."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Count | None = None


class ReasoningBody(Body):
    """Fields about reasoning. Those with one meaning must agree."""

    reasoning_effort: Effort | None = None
    reasoning: OpenRouterReasoning | None = None
    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    thinking_budget: ThinkingBudget | None = None
    thinking_token_budget: ThinkingBudget | None = None
    """vLLM's name."""
    thinking_budget_tokens: ThinkingBudget | None = None
    """llama-server's name, like the next."""
    reasoning_budget_tokens: ThinkingBudget | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: Annotated[JsonObject, Field(max_length=64)] | None = None


def _not_zero(number: int) -> int:
    if number == 0:
        raise PydanticCustomError("zero", "Input should be -1, or 1 at least")
    return number


LastTokens = Annotated[int, Field(ge=-1, le=COUNT.most), AfterValidator(_not_zero)]
Prediction = Annotated[int, Field(ge=-2, le=COUNT.most), IntegralFloat]
"""Negative for all that the context leaves."""


class PredictionBody(ProgressBody):
    n_predict: Prediction | None = None
    timings_per_token: bool | None = None
    samplers: Samplers | None = None


MixedText = Union[str, tuple[Union[int, str], ...]]


def _wrong_prompt() -> PydanticCustomError:
    return PydanticCustomError(
        "prompt_kind",
        "Input should be a string, a list of token ids and strings, an object with 'prompt_string', or a "
        "list of these",
    )


def _prompts(value: object) -> tuple[MixedText, ...]:
    """Read one prompt from a list with token ids, and several from others."""
    if not isinstance(value, list) or any(is_token_id(item) for item in value):
        return (_one_prompt(value),)
    if not value:
        raise _wrong_prompt()
    return tuple(map(_one_prompt, value))


def _one_prompt(value: object) -> MixedText:
    if isinstance(value, list):
        items = tuple(item for item in value if isinstance(item, str) or is_token_id(item))
        if not items or len(items) < len(value):
            raise _wrong_prompt()
        return tuple(item if isinstance(item, str) else int(str(item)) for item in items)
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            message = "pictures belong to the messages of '/v1/chat/completions'"
            raise PydanticCustomError("multimodal_data", message)
        value = value.get("prompt_string")
    if not isinstance(value, str):
        raise _wrong_prompt()
    return value


def is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_SentPrompts = Union[str, list[Union[int, str, list[Union[int, str]], JsonObject]], JsonObject]
MixedPrompts = Annotated[tuple[MixedText, ...], PlainValidator(_prompts, json_schema_input_type=_SentPrompts)]
