"""The bodies of `/generate`, `/v1/generate` and `/v1/generate/batch`, and the `Ask` of one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, Field

from openai_cpu_server.api.asking.as_ask import any_object, generation_ask
from openai_cpu_server.api.asking.ask import Ask, AskedForm, AskedLimit, AskedTexts, wrong
from openai_cpu_server.api.asking.body import GenerationBody
from openai_cpu_server.api.asking.fields import JsonObject, Several

MAX_ITEMS = 1024
"""As many as one call of another family may have sequences, by default."""
_OLD_NAMES = {"high": "interactive", "normal": "interactive", "low": "batch"}


def _present_name(priority: str) -> str:
    return _OLD_NAMES.get(priority, priority)


PriorityName = Annotated[
    Literal["interactive", "batch", "high", "normal", "low"], AfterValidator(_present_name)
]


class GenerateFields(GenerationBody):
    """What these bodies have beside the common fields, prompts aside."""

    max_tokens: Several | None = None
    format: Literal["text", "json"] | None = None
    """With a `json_schema` it is JSON anyway."""
    raw: bool | None = None
    """The prompt is a text to continue; else it is what a user says, if the model can chat."""
    priority: PriorityName | None = None


class GenerateBody(GenerateFields):
    prompt: Annotated[str, Field(min_length=1)]


class GenerateBatchBody(GenerateFields):
    """Exactly one of the lists; all else is for every request that does not have it itself."""

    prompts: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None = None
    requests: (
        Annotated[list[JsonObject], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None
    ) = None


def generate_ask(body: GenerateBody) -> Ask:
    """Raises InvalidRequest for what contradicts itself."""
    if (body.n or 1) > 1:
        raise wrong("'n' above 1 is not possible here: an answer has one text.", "n")
    ask = generation_ask(body, AskedTexts([body.prompt], is_said=not body.raw), id_prefix="gen-")
    return msgspec.structs.replace(
        ask,
        form=_form(body, ask.form),
        is_json=body.format == "json" or _names_schema(body),
        max_tokens=None if body.max_tokens is None else AskedLimit(body.max_tokens, "max_tokens"),
    )


def _form(body: GenerateBody, given: AskedForm | None) -> AskedForm | None:
    """What `format` stands for, where nothing more exact is said."""
    if body.format == "text" and _names_schema(body):
        raise wrong("'format' is 'text', but a JSON schema is given.", "format")
    if body.format != "json" or _names_schema(body):
        return given
    if given is not None:
        message = f"'format' and '{given.path}' cannot be combined: ask for one structure."
        raise wrong(message, given.path)
    return any_object("format")


def _names_schema(body: GenerateBody) -> bool:
    wanted = body.response_format
    other = wanted is not None and wanted.type != "text"
    return body.json_schema is not None or body.guided_json is not None or other
