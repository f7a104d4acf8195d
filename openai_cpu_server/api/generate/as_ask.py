"""A body of `/generate` becomes an `Ask`: a chat with one message where the model can chat, else a text."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.asking.ask import Ask, AskedForm, AskedLimit, AskedTexts, wrong
from openai_cpu_server.api.asking.bodies import generation_ask
from openai_cpu_server.api.resolve.answer_shape import any_object
from openai_cpu_server.api.schemas.generate import GenerateBody


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
