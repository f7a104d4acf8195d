"""The end of both families' way: prompts and a body become one `Call` with its requests."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.api.access.clients import Client, account_of
from openai_cpu_server.api.calls.call import Asking, Call, Prompt, Reuse
from openai_cpu_server.api.resolve.limits import (
    check_sequences,
    choices,
    include_usage,
    output_tokens,
    stop_strings,
)
from openai_cpu_server.api.resolve.output import Output, check_ends
from openai_cpu_server.api.resolve.sampling import for_choice, sampling_of
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.parse import header_safe
from openai_cpu_server.api.schemas.unheeded import TIERS
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.prefix import cache_namespace
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling

UNENFORCED = "x-unenforced-schema-keywords"
_MOST_NAMED = 32
"""So many schema keywords are named in that header at most."""


def resolve_call(
    body: GenerationBody,
    prompts: Sequence[Prompt],
    asking: Asking,
    output: Output,
    *,
    id_prefix: str,
    prompt_param: str,
    max_tokens: int | None,
    best_of: int | None = None,
    logprobs: int | None = None,
    score_prompt: bool = False,
) -> Call:
    """The keyword arguments are what families say in fields of their own; all else they have alike.

    `logprobs`: alternatives to show beside each token; None: no log-probabilities.
    """
    check_ends(body, output)
    n = choices(body.n, limit=asking.options.max_choices, param="n")
    best_of = n if best_of is None else best_of
    check_sequences(len(prompts), best_of, limit=asking.options.max_sequences)
    call_id = id_prefix + secrets.token_hex(12)
    alike = _request(body, asking, output)
    alike = msgspec.structs.replace(
        alike,
        # To choose the best, log-probabilities are needed, whether they are shown or not.
        top_logprobs=0 if best_of > n and logprobs is None else logprobs,
        prompt_logprobs=score_prompt,
        route=id_prefix.removesuffix("-"),
    )
    asked_tokens = (max_tokens or 0) * best_of * len(prompts)
    rooms = [_room(prompt, max_tokens, asking, param=prompt_param) for prompt in prompts]
    return Call(
        id=call_id,
        model=asking.chosen.name,
        created=int(time.time()),
        fingerprint=fingerprint(asking.info, asking.chosen.adapter_key),
        prompts=tuple(prompts),
        requests=_requests(alike, call_id, list(zip(prompts, rooms, strict=True)), best_of),
        n=n,
        best_of=best_of,
        priority=alike.priority,
        stream=bool(body.stream),
        include_usage=include_usage(body),
        timeout_s=body.timeout,
        max_output_tokens=asked_tokens,
        service_tier=_tier(body.service_tier, alike.priority),
        metadata=body.metadata,
        shown_logprobs=logprobs,
        tool_calls=output.tool_calls,
        thinking=output.thinking,
        reuse=_reuse(body, alike.sampling, asked_tokens),
        headers=_headers(asking, output),
    )


def _reuse(body: GenerationBody, sampling: Sampling, asked_tokens: int) -> Reuse | None:
    if body.cache is False:
        return None
    return Reuse(is_repeatable=sampling.temperature == 0 or body.seed is not None, asked_tokens=asked_tokens)


def _tier(asked: str | None, priority: Priority) -> str | None:
    """The tier that the call is served in, as the answer tells it."""
    if asked is None:
        return None
    return served_tier(asked if asked in TIERS else "default", priority)


def served_tier(asked: str, priority: Priority) -> str:
    """A key's best priority, or the header, may have lowered it."""
    is_lowered = priority is Priority.BATCH and asked in ("priority", "fast")
    return "flex" if is_lowered else asked


def fingerprint(info: ModelInfo, adapter_key: str | None = None) -> str:
    """Equal as long as this version serves this file, with this version of an adapter."""
    facts = f"{PurePath(info.path).name}|{info.file_bytes}|{info.description}"
    if adapter_key is not None:
        facts += f"|{adapter_key}"
    return f"fp_{__version__}_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"


def _request(body: GenerationBody, asking: Asking, output: Output) -> GenerationRequest:
    """What all requests of the call have alike: all but their prompts and seeds."""
    identity = asking.sender.identity
    key = identity.digest if asking.options.isolate_by_key else None
    return GenerationRequest(
        id="",
        tokens=(),
        max_tokens=0,
        sampling=sampling_of(body, vocab_size=asking.info.vocab_size),
        priority=asking.sender.priority(field=body.priority, tier=body.service_tier),
        stop=stop_strings(body),
        client=Client.of(identity, body.user or body.safety_identifier).label,
        account=account_of(identity),
        group=Client.group_of(identity),
        cache_namespace=cache_namespace(salt=body.cache_salt, key=key),
        adapter=asking.chosen.adapter,
        constraint=output.constraint,
        marks=output.thinking.marks if output.thinking is not None else None,
        # What the model writes between thoughts, text and tool calls is for the reader of its output to see.
        show_control_tokens=output.tool_calls is not None or output.shows_marks,
    )


def _room(prompt: Prompt, max_tokens: int | None, asking: Asking, *, param: str) -> int:
    """Output tokens that a choice of this prompt may have."""
    return output_tokens(
        max_tokens,
        prompt_tokens=len(prompt.tokens),
        context=asking.info.context_limit,
        param=param,
        max_prompt=asking.options.max_prompt_tokens,
        max_output=asking.options.max_output_tokens,
    )


def _requests(
    alike: GenerationRequest, call_id: str, prompts: Sequence[tuple[Prompt, int]], best_of: int
) -> tuple[GenerationRequest, ...]:
    return tuple(
        msgspec.structs.replace(
            alike,
            id=f"{call_id}/{index * best_of + choice}",
            tokens=prompt.tokens,
            max_tokens=max_tokens,
            sampling=for_choice(alike.sampling, choice),
        )
        for index, (prompt, max_tokens) in enumerate(prompts)
        for choice in range(best_of)
    )


def _headers(asking: Asking, output: Output) -> dict[str, str]:
    if not output.unenforced:
        return asking.ignored.headers
    more = ["..."] if len(output.unenforced) > _MOST_NAMED else []
    names = [header_safe(path) for path in output.unenforced[:_MOST_NAMED]]
    return {**asking.ignored.headers, UNENFORCED: ",".join(names + more)}
