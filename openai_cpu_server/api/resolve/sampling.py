"""How to sample: OpenAI's fields and ours become one `Sampling`. A field more costs a line here, one in the
bodies and one in `contract/request.py`."""

from __future__ import annotations

import secrets
from typing import TypeVar

import msgspec

from openai_cpu_server.api.schemas.generation import SharedBody
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.errors import InvalidRequest

_SEEDS = 2**63
T = TypeVar("T")


def sampling_of(body: SharedBody) -> Sampling:
    """Raises InvalidRequest for a bias of what is no token id; `check_bias` knows which ids there are."""
    return Sampling(
        seed=seed_of(body.seed),
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=top_k_of(body.top_k),
        min_p=_or(body.min_p, 0.0),
        typical_p=_or(body.typical_p, 1.0),
        repeat_penalty=_or(body.repeat_penalty, 1.0),
        repeat_last_n=_or(body.repeat_last_n, 64),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias={_token_id(key): bias for key, bias in (body.logit_bias or {}).items()},
        ignore_eos=_or(body.ignore_eos, False),
    )


def seed_of(asked: int | None) -> int:
    return secrets.randbelow(_SEEDS) if asked is None else asked % _SEEDS


def top_k_of(asked: int | None) -> int | None:
    return asked if asked is not None and asked > 0 else None


def check_bias(sampling: Sampling, *, vocab_size: int) -> Sampling:
    """Raises InvalidRequest for ids that the vocabulary does not have."""
    check_tokens(tuple(sampling.logit_bias), vocab_size=vocab_size, param="logit_bias")
    return sampling


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


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        message = "Invalid value for 'logit_bias': its keys must be token ids."
        raise InvalidRequest(message, param="logit_bias", code="invalid_value")
    return int(key)
