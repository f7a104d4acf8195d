"""Form of a recording."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation.schema import OutputLimit, SharedBody
from openai_cpu_server.http.ignored_params import (
    TIER_IGNORED,
    TRANSCRIPTION_UNSUPPORTED,
    IgnoredParams,
    UnsupportedParams,
)


def _no_words(granularities: list[str]) -> list[str]:
    if "word" in granularities:
        raise PydanticCustomError("words", "Input should be 'segment': the times of words are not known")
    return granularities


def _no_tuning(strategy: object) -> object:
    strategy = _from_json(strategy)
    if isinstance(strategy, dict) and strategy.keys() - {"type"}:
        raise PydanticCustomError(
            "tuning", "Input should be 'auto': a recording is always split at quiet places"
        )
    return strategy["type"] if isinstance(strategy, dict) and "type" in strategy else strategy


def _from_json(value: object) -> object:
    """Return an object or a list that a form has as JSON, or anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value := _from_json(value), str) else value


def _language(value: object) -> object:
    """Return a tag of BCP 47 or a name; phones and POSIX write `pt_BR.UTF-8`. Some clients send a word for
    no language."""
    if not isinstance(value, str):
        return value
    tag = re.split("[.@]", value.strip())[0].replace("_", "-")
    return None if tag.lower() in _NO_LANGUAGES else tag


_NO_LANGUAGES = ("", "auto", "detect", "multi", "none", "null", "und", "undefined")
_AsList = BeforeValidator(_listed)
"""OpenAI's SDKs write brackets after the name."""
_Phrase = Annotated[str, Field(min_length=1, max_length=256)]
_Language = Annotated[str, Field(pattern=r"^[^\W\d_][\w ()'-]{1,63}$")]
_LanguageOrNone = Annotated[Union[_Language, None], BeforeValidator(_language)]
_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}


class RecordingBody(SharedBody):
    """Fields of the form. OpenAI accepts some of them for transcriptions only."""

    ignored: ClassVar[IgnoredParams] = TIER_IGNORED
    unsupported: ClassVar[UnsupportedParams] = TRANSCRIPTION_UNSUPPORTED

    file: Annotated[str, WithJsonSchema(_FILE)]
    """File name; the content is separate."""
    language: _LanguageOrNone = None
    """Spoken language, as a tag of BCP 47 or a name. `auto` is the same as none."""
    languages: Annotated[list[_LanguageOrNone], Field(max_length=16), _AsList] | None = None
    prompt: Annotated[str, Field(max_length=16_384)] | None = None
    keywords: Annotated[list[_Phrase], Field(max_length=256), _AsList] | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] | None = None
    timestamp_granularities: (
        Annotated[list[Literal["segment", "word"]], Field(max_length=2), _AsList, BeforeValidator(_no_words)]
        | None
    ) = None
    include: Annotated[list[Literal["logprobs"]], Field(max_length=1), _AsList] | None = None
    chunking_strategy: Annotated[Literal["auto", "server_vad"], BeforeValidator(_no_tuning)] | None = None
    max_completion_tokens: OutputLimit = None
    """vLLM's limit for each piece."""
    max_tokens: OutputLimit = None

    @property
    def form(self) -> str:
        return self.response_format or "json"
