"""Conversion of a `GenerateBody` to a `GenerationParams`, and of a batch to one for each request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from openai_cpu_server.api.generate.schema import GenerateBatchBody, GenerateBody
from openai_cpu_server.api.generation.params import GenerationParams, LimitParam, PromptsParam
from openai_cpu_server.api.generation.route import ApiAdapter, not_in_batches
from openai_cpu_server.api.generation.to_params import any_object, generation_params
from openai_cpu_server.errors import BodyTooLarge, wrong
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, parse, parse_fields


def generate_params(body: GenerateBody) -> GenerationParams:
    if (body.n or 1) > 1:
        raise wrong("'n' above 1 is not supported here: an answer has one text.", "n")
    prompt = PromptsParam([body.prompt], is_user_message=not body.raw)
    params = generation_params(body, prompt, id_prefix="gen-")
    response_format = body.response_format
    has_format = response_format is not None and response_format.type != "text"
    names_schema = has_format or body.json_schema is not None or body.guided_json is not None
    form = params.form
    if body.format == "text" and names_schema:
        raise wrong("'format' is 'text', but a JSON schema is given.", "format")
    if body.format == "json" and not names_schema:
        if form is not None:
            raise wrong(f"'format' and '{form.path}' cannot be combined: ask for one structure.", form.path)
        form = any_object("format")
    as_json = body.format == "json" or names_schema
    return msgspec.structs.replace(
        params,
        form=form,
        details=msgspec.structs.replace(params.details, as_json=as_json),
        max_tokens=None if body.max_tokens is None else LimitParam(body.max_tokens, "max_tokens"),
    )


class PromptBatch(NamedTuple):
    shared: Mapping[str, object]
    items: Sequence[Mapping[str, object]]
    ignored: Ignored
    size: int
    shared_size: int

    def params(self, family: ApiAdapter[GenerateBody], index: int, *, lenient: bool) -> GenerationParams:
        """Convert one request as if it had come alone. Raises InvalidRequest."""
        fields = {**self.shared, **self.items[index]}
        if fields.get("stream") is True:
            raise not_in_batches("stream")
        size = self.shared_size + len(str(self.items[index].get("prompt", "")))
        return family.convert(*parse_fields(GenerateBody, fields, lenient=lenient), num_bytes=size)


def read_batch(data: bytes, options: ApiOptions) -> PromptBatch:
    """Reject shared fields that would make much work of few bytes. Raises InvalidRequest, BodyTooLarge."""
    body, ignored = parse(GenerateBatchBody, data, lenient=options.lenient)
    if (body.prompts is None) == (body.requests is None):
        raise wrong("Give exactly one of 'prompts' and 'requests'.", "prompts")
    if body.stream:
        raise not_in_batches("stream")
    lists = {"prompts", "requests"}
    shared = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=lists)
    items: Sequence[Mapping[str, object]] = (
        body.requests if body.prompts is None else [{"prompt": prompt} for prompt in body.prompts]
    ) or ()
    shared_size = len(json.dumps(shared))
    if shared_size * len(items) > options.max_body_bytes:
        raise BodyTooLarge(options.max_body_bytes)
    return PromptBatch(shared, items, ignored, len(data), shared_size)
