"""A text completion's body becomes an `Ask`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec

from openai_cpu_server.api.asking.ask import Ask, AskedLimit, AskedTexts
from openai_cpu_server.api.asking.bodies import generation_ask
from openai_cpu_server.api.schemas.completion import CompletionBody


def completion_ask(body: CompletionBody) -> Ask:
    """Raises InvalidRequest for what contradicts itself."""
    prompt = AskedTexts(_as_list(body.prompt), suffix=body.suffix, echo=bool(body.echo))
    return msgspec.structs.replace(
        generation_ask(body, prompt, id_prefix="cmpl-"),
        best_of=body.best_of,
        logprobs=body.logprobs,
        score_prompt=bool(body.echo) and body.logprobs is not None,
        max_tokens=None if body.max_tokens is None else AskedLimit(body.max_tokens, "max_tokens"),
    )


def _as_list(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Union[str, Sequence[int]]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [item for item in prompt if not isinstance(item, int)]
