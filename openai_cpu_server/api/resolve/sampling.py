"""How to sample: OpenAI's fields and ours become one `Sampling`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.errors import InvalidRequest

_SEEDS = 2**63
T = TypeVar("T")


def sampling_of(body: GenerationBody, *, vocab_size: int) -> Sampling:
    return Sampling(
        seed=secrets.randbelow(_SEEDS) if body.seed is None else body.seed % _SEEDS,
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
        min_p=_or(body.min_p, 0.0),
        typical_p=_or(body.typical_p, 1.0),
        repeat_penalty=_or(body.repeat_penalty, 1.0),
        repeat_last_n=_or(body.repeat_last_n, 64),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
        ignore_eos=_or(body.ignore_eos, False),
    )


def for_choice(sampling: Sampling, choice: int) -> Sampling:
    """Choices of one prompt differ by their seed alone."""
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % _SEEDS) if choice else sampling


def check_tokens(tokens: tuple[int, ...], *, vocab_size: int, param: str) -> tuple[int, ...]:
    """Raises InvalidRequest for an id that the vocabulary does not have."""
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        message = f"Invalid value for '{param}': token ids go from 0 to {vocab_size - 1}."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return tokens


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _logit_bias(bias: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    ids = tuple(_token_id(key) for key in bias)
    check_tokens(ids, vocab_size=vocab_size, param="logit_bias")
    return dict(zip(ids, bias.values(), strict=True))


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        message = "Invalid value for 'logit_bias': its keys must be token ids."
        raise InvalidRequest(message, param="logit_bias", code="invalid_value")
    return int(key)
