"""Unions chosen by the JSON type, so that an error names the right place.

Tags stand in angle brackets: pydantic puts them into an error's path, and `parse` takes them out again.
"""

from __future__ import annotations

from typing import Annotated, Union

from pydantic import Discriminator, Field, Tag


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


TEXT_OR_LIST = Discriminator(
    _text_or_list,
    custom_error_type="text_or_list",
    custom_error_message="Input should be a string or an array",
)

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
Tokens = Annotated[list[int], Field(min_length=1, fail_fast=True)]

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
        Annotated[list[str], Field(min_length=1, fail_fast=True), Tag("<texts>")],
        Annotated[Tokens, Tag("<tokens>")],
        Annotated[list[Tokens], Field(min_length=1, fail_fast=True), Tag("<token lists>")],
    ],
    PROMPT_KIND,
]

MAX_TOOLS = 128
"""OpenAI's limit."""
_VISION = "this model has no vision and cannot see images"
_HEARING = "this model cannot hear audio"
_FILES = "this model cannot read files; send their text"
LACKS = {
    "image_url": _VISION,
    "image": _VISION,
    "input_image": _VISION,
    "video_url": "this model has no vision and cannot see videos",
    "input_audio": _HEARING,
    "audio": _HEARING,
    "audio_url": _HEARING,
    "file": _FILES,
    "input_file": _FILES,
    "document": _FILES,
}
"""What a model of text lacks for parts of other types."""
