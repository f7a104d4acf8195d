"""Sampling parameters and output limits. A new field needs a line here, in `body` and in the contract."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, NamedTuple, TypeGuard, Union

import msgspec
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation.params import ConversationsParam, GenerationParams, PromptsParam
from openai_cpu_server.contract.model_info import ModelInfo, Tokenizer
from openai_cpu_server.contract.request import COUNT, DryPenalty, Sampling
from openai_cpu_server.errors import InvalidRequest, PromptTooLong, wrong
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Body

_SEEDS = 2**63


_AS_SENT = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "xtc_probability",
    "xtc_threshold",
    "min_tokens",
    "ignore_eos",
)
"""Fields with one name in bodies and contract. The contract's default stands for absent ones."""
_OTHERWISE = ("seed", "top_k", "logit_bias", "top_n_sigma", "stop_token_ids", "repetition_penalty")
_DRY = {
    "multiplier": "multiplier",
    "base": "base",
    "allowed_length": "allowed_length",
    "last_n": "penalty_last_n",
    "breakers": "sequence_breakers",
}


def sampling_of(body: Body) -> Sampling:
    """Read the fields that the body type has. Raises InvalidRequest for a bias without a token id."""
    names = type(body).model_fields.keys() & {*_OTHERWISE, *_AS_SENT}
    sent = {name: getattr(body, name) for name in names}
    seed, top_k, bias, sigma, stops, repetition = (sent.pop(name, None) for name in _OTHERWISE)
    if repetition is not None:
        if sent.get("repeat_penalty") is not None:
            message = "Only one of 'repetition_penalty' and 'repeat_penalty' can be given."
            raise wrong(message, "repetition_penalty")
        sent |= {"repeat_penalty": repetition, "repeat_last_n": COUNT.most}
    return Sampling(
        seed=seed % _SEEDS if is_seed(seed) else secrets.randbelow(_SEEDS),
        top_k=top_k if top_k is not None and top_k > 0 else None,
        logit_bias={_token_id(key): number for key, number in (bias or {}).items()},
        top_n_sigma=max(sigma or 0.0, 0.0),
        stop_tokens=tuple(stops or ()),
        dry=_dry(body),
        **{name: value for name, value in sent.items() if value is not None},
    )


def sampling_sent(body: Body) -> frozenset[str]:
    return frozenset(name for name in (*_AS_SENT, *_OTHERWISE) if getattr(body, name, None) is not None)


def _dry(body: Body) -> DryPenalty | None:
    sent = {name: getattr(body, f"dry_{told}", None) for name, told in _DRY.items()}
    if not sent["multiplier"] or sent["last_n"] == 0:
        return None
    if sent["last_n"] == -1:
        del sent["last_n"]
    if sent["breakers"] is not None:
        sent["breakers"] = tuple(sent["breakers"])
    return DryPenalty(**{name: value for name, value in sent.items() if value is not None})


def is_seed(seed: int | None) -> TypeGuard[int]:
    """Return False for -1, which means any seed in llama-server and vLLM."""
    return seed is not None and seed != -1


def for_model(ask: GenerationParams, tokenizer: Tokenizer, *, vocab_size: int) -> Sampling:
    """Resolve texts to tokens. Raises InvalidRequest for ids outside of the vocabulary."""
    bias, never = dict(ask.sampling.logit_bias), _bad_words(ask.bad_words, tokenizer)
    for asked in ask.biases:
        for token in _tokens_of(asked.token, tokenizer):
            if asked.amount is None:
                never.append((token,))
            else:
                bias[token] = asked.amount
    check_tokens((*bias, *chain(*never)), vocab_size=vocab_size, param="logit_bias")
    check_tokens(ask.sampling.stop_tokens, vocab_size=vocab_size, param="stop_token_ids")
    return msgspec.structs.replace(ask.sampling, logit_bias=bias, bad_words=tuple(never))


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Tokenize each word as at the beginning of a text and, if that takes as many tokens, behind a blank."""
    texts = [text for word in words for text in (word.lstrip(), f" {word.lstrip()}")]
    read = tokenizer.encode_all(texts, add_special=False, parse_special=False) if texts else []
    rows = [tuple(tokens) for tokens in read]
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [
        row for first, behind in pairs for row in ((first, behind) if len(first) == len(behind) else (first,))
    ]


def _tokens_of(token: int | str, tokenizer: Tokenizer) -> Sequence[int]:
    if isinstance(token, int):
        return (token,)
    return tokenizer.encode(token, add_special=False, parse_special=False)


def for_choice(sampling: Sampling, choice: int) -> Sampling:
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % _SEEDS) if choice else sampling


def check_tokens(tokens: tuple[int, ...], *, vocab_size: int, param: str) -> tuple[int, ...]:
    """Return the tokens. Raises InvalidRequest for an id outside of the vocabulary."""
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        raise wrong(f"Invalid value for '{param}': token ids go from 0 to {vocab_size - 1}.", param)
    return tokens


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise wrong("Invalid value for 'logit_bias': its keys must be token ids.", "logit_bias")
    return int(key)


class OutputRoom(NamedTuple):
    tokens: int
    context_ends_it: bool


def output_room(
    ask: GenerationParams, prompt_tokens: int, info: ModelInfo, options: ApiOptions
) -> OutputRoom:
    """Return the limit of a choice, by default the rest of the context. Raises InvalidRequest beyond the
    server's limits, PromptTooLong beyond the context."""
    context, max_output = info.context_limit, options.max_output_tokens
    asked, param = ask.max_tokens, ask.prompt.path
    if options.max_prompt_tokens is not None and prompt_tokens > options.max_prompt_tokens:
        raise InvalidRequest(
            f"The prompt has {prompt_tokens} tokens; this server takes at most {options.max_prompt_tokens}.",
            param=param,
            code="context_length_exceeded",
        )
    if asked is not None and not asked.is_ceiling:
        if max_output is not None and asked.tokens > max_output:
            at = asked.path
            raise wrong(f"Invalid value for '{at}': this server allows at most {max_output}.", at)
        wanted = asked.tokens
    else:
        wanted = max(1, context - prompt_tokens)
        wanted = wanted if max_output is None else min(wanted, max_output)
    if prompt_tokens + wanted > context:
        raise PromptTooLong(prompt_tokens=prompt_tokens, max_tokens=wanted, limit=context, param=param)
    if asked is None or not asked.is_ceiling:
        return OutputRoom(wanted, context_ends_it=False)
    tokens = min(wanted, asked.tokens)
    return OutputRoom(tokens, tokens < asked.tokens and prompt_tokens + tokens >= context)


def _num_prompts(ask: GenerationParams) -> int:
    if isinstance(ask.prompt, ConversationsParam):
        return len(ask.prompt.each)
    return len(ask.prompt.prompts) if isinstance(ask.prompt, PromptsParam) else 1


class NumChoices(NamedTuple):
    shown: int
    made: int


def choices_of(ask: GenerationParams, options: ApiOptions) -> NumChoices:
    """Count the choices. Raises InvalidRequest."""
    best_of = None if ask.best_of is None else _allowed(ask.best_of, options, "best_of")
    if best_of is not None:
        _check_best(best_of, ask)
    n = 1 if ask.n is None else _allowed(ask.n, options, "n")
    made = n if best_of is None else best_of
    num_prompts = _num_prompts(ask)
    if num_prompts * made > options.max_sequences:
        message = f"{num_prompts} prompts with {made} choices each: one call may have "
        choice = "n" if best_of is None else "best_of"
        raise wrong(f"{message}{options.max_sequences} in all.", choice if num_prompts == 1 else "prompt")
    return NumChoices(n, made)


def _allowed(value: int, options: ApiOptions, param: str) -> int:
    if value > options.max_choices:
        raise wrong(f"Invalid value for '{param}': this server allows at most {options.max_choices}.", param)
    return value


def _check_best(best_of: int, ask: GenerationParams) -> None:
    n = ask.n or 1
    if best_of < n:
        raise wrong("'best_of' must not be smaller than 'n'.", "best_of")
    if best_of > n and ask.stream:
        raise wrong("'best_of' above 'n' cannot be streamed: the best is known at the end only.", "best_of")


# -- which samplers there are --------------------------------------------------------------------------

CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""Samplers in the only order of application, which is llama-server's own."""
_GONE = ("infill", "tfs_z", "adaptive_p")
"""Names from clients without a sampler here, ignored and named in a header."""
_BY_LETTER = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
_SPELLINGS = {
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "top-n-sigma": "top_n_sigma",
    "temp": "temperature",
}
_NEUTRAL = Sampling(seed=0)
_OF_SAMPLER: Mapping[str, tuple[str, ...]] = {
    "penalties": ("repeat_penalty", "presence_penalty", "frequency_penalty"),
    "dry": ("dry",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc_probability",),
    "temperature": ("temperature",),
}


def _known_samplers(value: object) -> tuple[str, ...]:
    names = [_BY_LETTER.get(letter, letter) for letter in value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PydanticCustomError("samplers", "Input should be a list of names, or a string of their letters")
    found: list[str] = [_SPELLINGS.get(str(name), str(name)) for name in names]
    strange = next((name for name in found if name not in (*CHAIN, *_GONE)), None)
    if strange is not None:
        known = {"name": strange[:64], "known": ", ".join(CHAIN)}
        raise PydanticCustomError("samplers", "there is no sampler '{name}', only {known}", known)
    return tuple(found)


Samplers = Annotated[
    tuple[str, ...], PlainValidator(_known_samplers, json_schema_input_type=Union[list[str], str])
]


def left_out(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return names without a sampler here."""
    return tuple(f"samplers ({name})" for name in names or () if name not in CHAIN)


def with_samplers(sampling: Sampling, names: tuple[str, ...] | None) -> Sampling:
    """Switch off samplers that are not named. Raises InvalidRequest for an order that changes the result."""
    if names is None:
        return sampling
    active = [name for name in names if name in CHAIN and _is_on(sampling, name)]
    if active != sorted(set(active), key=CHAIN.index):
        order = ", ".join(sorted(set(active), key=CHAIN.index))
        raise wrong(
            f"Invalid value for 'samplers': here they are applied in this order: {order}.", "samplers"
        )
    off = [field for name in CHAIN if name not in names for field in _OF_SAMPLER[name]]
    return msgspec.structs.replace(sampling, **{field: getattr(_NEUTRAL, field) for field in off})


def _is_on(sampling: Sampling, name: str) -> bool:
    return any(getattr(sampling, field) != getattr(_NEUTRAL, field) for field in _OF_SAMPLER[name])
