"""A new field needs a line here, in `schema` and in the contract."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple, TypeGuard, Union

import msgspec
from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation.params import (
    ConversationsParam,
    GenerationParams,
    PromptsParam,
    SamplingParam,
)
from openai_cpu_server.contract.model_info import ModelInfo, Tokenizer
from openai_cpu_server.contract.request import COUNT, DryPenalty, Sampling
from openai_cpu_server.errors import InvalidRequest, PromptTooLong, wrong
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Body
from openai_cpu_server.models.defaults import ModelDefaults, SamplingValues, with_values

_SEEDS = 2**63
_SAME_NAMES = (
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
"""Same name in bodies and contract, whose default stands for absent ones."""
_CONVERTED = ("seed", "top_k", "logit_bias", "top_n_sigma", "stop_token_ids", "repetition_penalty")
_DRY = {
    "multiplier": "multiplier",
    "base": "base",
    "allowed_length": "allowed_length",
    "last_n": "penalty_last_n",
    "breakers": "sequence_breakers",
}


def sampling_param(body: Body, *, defaults: SamplingValues | None = None) -> SamplingParam:
    """Read the fields that the body type has. Raises InvalidRequest for a bias without a token id."""
    fields = _declared(body, ("seed", "samplers", "bad_words"))
    return SamplingParam(
        values=_values(body),
        sent=sampling_sent(body),
        is_seeded=_is_seed(fields.get("seed")),
        defaults=defaults,
        samplers=fields.get("samplers"),
        bad_words=tuple(fields.get("bad_words") or ()),
    )


def _declared(body: Body, names: Collection[str]) -> dict[str, Any]:
    """Return the values of these fields without undeclared ones, which a body may contain unchecked."""
    return {name: getattr(body, name) for name in type(body).model_fields.keys() & {*names}}


def _values(body: Body) -> Sampling:
    sent = _declared(body, (*_CONVERTED, *_SAME_NAMES))
    seed, top_k, bias, sigma, stops, repetition = (sent.pop(name, None) for name in _CONVERTED)
    if repetition is not None:
        if sent.get("repeat_penalty") is not None:
            message = "Only one of 'repetition_penalty' and 'repeat_penalty' can be given."
            raise wrong(message, "repetition_penalty")
        sent |= {"repeat_penalty": repetition, "repeat_last_n": COUNT.most}
    for key in bias or {}:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise wrong("Invalid value for 'logit_bias': its keys must be token ids.", "logit_bias")
    return Sampling(
        seed=seed % _SEEDS if _is_seed(seed) else secrets.randbelow(_SEEDS),
        top_k=top_k if top_k is not None and top_k > 0 else None,
        logit_bias={int(key): number for key, number in (bias or {}).items()},
        top_n_sigma=max(sigma or 0.0, 0.0),
        stop_tokens=tuple(stops or ()),
        dry=_dry(body),
        **{name: value for name, value in sent.items() if value is not None},
    )


def sampling_sent(body: Body) -> frozenset[str]:
    fields = _declared(body, (*_SAME_NAMES, *_CONVERTED))
    sent = {name for name, value in fields.items() if value is not None}
    if "repetition_penalty" in sent:
        sent |= {"repeat_penalty", "repeat_last_n"}
    return frozenset(sent)


def with_defaults(sampling: SamplingParam, model: ModelDefaults, preset: SamplingValues) -> SamplingParam:
    """Fill in unsent fields. Greedy requests get no penalties but those of the `preset`."""
    usual = model.over(sampling.defaults)
    if "temperature" in sampling.sent and sampling.values.temperature == 0:
        usual = {name: value for name, value in usual.items() if not name.endswith("_penalty")}
    unsent = {name: value for name, value in {**usual, **preset}.items() if name not in sampling.sent}
    values = with_samplers(with_values(sampling.values, unsent), sampling.samplers)
    return msgspec.structs.replace(sampling, values=values, is_seeded=sampling.is_seeded or "seed" in preset)


def _dry(body: Body) -> DryPenalty | None:
    fields = _declared(body, [f"dry_{suffix}" for suffix in _DRY.values()])
    sent = {name: fields.get(f"dry_{suffix}") for name, suffix in _DRY.items()}
    if not sent["multiplier"] or sent["last_n"] == 0:
        return None
    if sent["last_n"] == -1:
        del sent["last_n"]
    if sent["breakers"] is not None:
        sent["breakers"] = tuple(sent["breakers"])
    return DryPenalty(**{name: value for name, value in sent.items() if value is not None})


def _is_seed(seed: int | None) -> TypeGuard[int]:
    """Return False for -1, which means any seed in llama-server and vLLM."""
    return seed is not None and seed != -1


def for_model(sampling: SamplingParam, tokenizer: Tokenizer, *, vocab_size: int) -> Sampling:
    """Resolve texts to tokens. Raises InvalidRequest for ids outside of the vocabulary."""
    values = sampling.values
    texts = [one.token for one in sampling.biases if isinstance(one.token, str)]
    encoded = iter(tokenizer.encode_all(texts, add_special=False, parse_special=False) if texts else ())
    bias, forbidden = dict(values.logit_bias), _bad_words(sampling.bad_words, tokenizer)
    for one in sampling.biases:
        for token in (one.token,) if isinstance(one.token, int) else next(encoded):
            if one.amount is None:
                forbidden.append((token,))
            else:
                bias[token] = one.amount
    check_tokens((*bias, *chain(*forbidden)), vocab_size=vocab_size, param="logit_bias")
    check_tokens(values.stop_tokens, vocab_size=vocab_size, param="stop_token_ids")
    return msgspec.structs.replace(values, logit_bias=bias, bad_words=tuple(forbidden))


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    texts = [text for word in words for text in (word.lstrip(), f" {word.lstrip()}")]
    encoded = tokenizer.encode_all(texts, add_special=False, parse_special=False) if texts else []
    rows: list[tuple[int, ...]] = []
    for first, behind in zip(encoded[::2], encoded[1::2], strict=True):
        rows += [tuple(first), tuple(behind)] if len(first) == len(behind) else [tuple(first)]
    return rows


def for_choice(sampling: Sampling, choice: int) -> Sampling:
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % _SEEDS) if choice else sampling


def check_tokens(tokens: tuple[int, ...], *, vocab_size: int, param: str) -> tuple[int, ...]:
    """Reject ids outside the vocabulary. Raises InvalidRequest."""
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        raise wrong(f"Invalid value for '{param}': token ids go from 0 to {vocab_size - 1}.", param)
    return tokens


class OutputBudget(NamedTuple):
    tokens: int
    context_ends_it: bool


def output_budget(
    params: GenerationParams, prompt_tokens: int, info: ModelInfo, options: ApiOptions, usual: int | None
) -> OutputBudget:
    """Return a choice's limit. `usual`: for requests that name none. Raises InvalidRequest beyond the
    server's limits, PromptTooLong beyond the context."""
    context, max_output = info.context_limit, options.output_token_cap
    limit, path = params.max_tokens, params.prompt.path
    if options.max_prompt_tokens is not None and prompt_tokens > options.max_prompt_tokens:
        raise InvalidRequest(
            f"The prompt has {prompt_tokens} tokens; this server takes at most {options.max_prompt_tokens}.",
            param=path,
            code="context_length_exceeded",
        )
    if limit is not None and not limit.is_ceiling:
        if max_output is not None and limit.tokens > max_output:
            at = limit.path
            raise wrong(f"Invalid value for '{at}': this server allows at most {max_output}.", at)
        most = limit.tokens
    else:
        most = max(1, context - prompt_tokens)
        most = most if max_output is None else min(most, max_output)
        most = most if limit is not None or usual is None else min(most, usual)
    if prompt_tokens + most > context:
        raise PromptTooLong(prompt_tokens=prompt_tokens, max_tokens=most, limit=context, param=path)
    if limit is None or not limit.is_ceiling:
        return OutputBudget(most, context_ends_it=False)
    tokens = min(most, limit.tokens)
    return OutputBudget(tokens, tokens < limit.tokens and prompt_tokens + tokens >= context)


class NumChoices(NamedTuple):
    shown: int
    made: int


def choices_of(params: GenerationParams, options: ApiOptions) -> NumChoices:
    """Count the choices. Raises InvalidRequest."""
    n, best_of, most = params.n or 1, params.best_of, options.max_choices
    if best_of is not None:
        if best_of > most:
            raise wrong(f"Invalid value for 'best_of': this server allows at most {most}.", "best_of")
        if best_of < n:
            raise wrong("'best_of' must not be smaller than 'n'.", "best_of")
        if best_of > n and params.stream:
            message = (
                "'best_of' above 'n' cannot be streamed, because the best answer is known only at the end."
            )
            raise wrong(message, "best_of")
    if n > most:
        raise wrong(f"Invalid value for 'n': this server allows at most {most}.", "n")
    made, num_prompts = n if best_of is None else best_of, 1
    if isinstance(params.prompt, ConversationsParam):
        num_prompts = len(params.prompt.each)
    elif isinstance(params.prompt, PromptsParam):
        num_prompts = len(params.prompt.prompts)
    if num_prompts * made > options.max_sequences:
        message = f"{num_prompts} prompts with {made} choices each: one call may have "
        choice = "n" if best_of is None else "best_of"
        raise wrong(f"{message}{options.max_sequences} in all.", choice if num_prompts == 1 else "prompt")
    return NumChoices(n, made)


# -- which samplers there are --------------------------------------------------------------------------

_FIELDS_OF: Mapping[str, tuple[str, ...]] = {
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
CHAIN = tuple(_FIELDS_OF)
"""Samplers in the only order of application, llama-server's own."""
_WITHOUT_SAMPLER = ("infill", "tfs_z", "adaptive_p")
"""Samplers that are missing here, named in a header."""
_BY_LETTER = dict(zip("edskypmxtia", (*CHAIN, "infill", "adaptive_p"), strict=True))
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


def _sampler_names(value: object) -> tuple[str, ...]:
    names = [_BY_LETTER.get(letter, letter) for letter in value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PydanticCustomError("samplers", "Input should be a list of names, or a string of their letters")
    found: list[str] = [_SPELLINGS.get(str(name), str(name)) for name in names]
    strange = next((name for name in found if name not in (*CHAIN, *_WITHOUT_SAMPLER)), None)
    if strange is not None:
        values = {"name": strange[:64], "known": ", ".join(CHAIN)}
        raise PydanticCustomError("samplers", "'{name}' is not a sampler; the samplers are {known}", values)
    return tuple(found)


Samplers = Annotated[
    tuple[str, ...], PlainValidator(_sampler_names, json_schema_input_type=Union[list[str], str])
]


def ignored_samplers(names: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(f"samplers ({name})" for name in names or () if name not in CHAIN)


def with_samplers(sampling: Sampling, names: tuple[str, ...] | None) -> Sampling:
    """Switch off others. Raises InvalidRequest for an order that changes the result."""
    if names is None:
        return sampling
    on = {
        name
        for name, fields in _FIELDS_OF.items()
        if any(getattr(sampling, field) != getattr(_NEUTRAL, field) for field in fields)
    }
    active = [name for name in names if name in on]
    if active != sorted(set(active), key=CHAIN.index):
        order = ", ".join(sorted(set(active), key=CHAIN.index))
        raise wrong(
            f"Invalid value for 'samplers': this server applies them in this order: {order}.", "samplers"
        )
    off = [field for name in CHAIN if name not in names for field in _FIELDS_OF[name]]
    return msgspec.structs.replace(sampling, **{field: getattr(_NEUTRAL, field) for field in off})
