"""The one place where fields that families have alike become a part of an `Ask`."""

from __future__ import annotations

from typing import Union

import msgspec

from openai_cpu_server.api.asking.ask import Ask, AskedConversation, AskedForm, AskedTexts, wrong
from openai_cpu_server.api.resolve.answer_shape import form_of
from openai_cpu_server.api.resolve.sampling import sampling_of
from openai_cpu_server.api.schemas.generation import GenerationBody, SharedBody

AskedPrompt = Union[AskedConversation, AskedTexts]


def shared_ask(body: SharedBody, prompt: AskedPrompt, *, id_prefix: str, form: AskedForm | None) -> Ask:
    """All that such a body says; its `service_tier` is that of chat. Raises InvalidRequest."""
    return Ask(
        id_prefix=id_prefix,
        prompt=prompt,
        sampling=sampling_of(body),
        is_seeded=body.seed is not None,
        model=body.model,
        lora=body.lora,
        stream=bool(body.stream),
        form=form,
        user=body.user or body.safety_identifier,
        priority=body.priority,
        service_tier=body.service_tier,
        metadata=body.metadata,
        cache=body.cache,
        cache_salt=body.cache_salt,
        timeout_s=body.timeout,
    )


def generation_ask(body: GenerationBody, prompt: AskedPrompt, *, id_prefix: str) -> Ask:
    """Raises InvalidRequest."""
    ask = shared_ask(body, prompt, id_prefix=id_prefix, form=form_of(body))
    return msgspec.structs.replace(
        ask,
        n=body.n,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        include_usage=_include_usage(body),
    )


def _include_usage(body: GenerationBody) -> bool:
    """Raises InvalidRequest for `stream_options` without a stream."""
    if body.stream_options is None:
        return False
    if not body.stream:
        message = "'stream_options' is only allowed together with 'stream'."
        raise wrong(message, "stream_options")
    return bool(body.stream_options.include_usage)
