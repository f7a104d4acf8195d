"""Fields that say what the output must look like: OpenAI's, llama-server's, vLLM's."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import Discriminator, Field, JsonValue, Tag

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.unions import text_or_object

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
Choices = Annotated[list[str], Field(min_length=1, fail_fast=True)]


class JsonSchemaFormat(Body):
    name: Name
    description: str | None = None
    """For people; the model does not see it."""
    strict: bool | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Body):
    """vLLM's: exactly one of them."""

    json_schema: Annotated[SchemaOrText | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
