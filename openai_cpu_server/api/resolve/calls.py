"""The end of both families' way: prompts and a body become one `Call` with its requests."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.api.access.clients import Client
from openai_cpu_server.api.access.keys import ANYBODY, Identity
from openai_cpu_server.api.call import Call, Prompt
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.resolve.cache import cache_namespace
from openai_cpu_server.api.resolve.limits import (
    check_sequences,
    choices,
    include_usage,
    output_tokens,
    stop_strings,
)
from openai_cpu_server.api.resolve.output import Output, check_ends
from openai_cpu_server.api.resolve.priority import priority_of
from openai_cpu_server.api.resolve.sampling import for_choice, sampling_of
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest


class Circumstances(msgspec.Struct, frozen=True):
    """What beside the body decides what a call means."""

    info: ModelInfo
    options: ApiOptions
    priority_header: str | None
    identity: Identity = ANYBODY


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the families say in fields of their own."""

    id_prefix: str
    prompt_param: str
    max_tokens: int | None
    best_of: int | None = None
    logprobs: int | None = None
    """Alternatives to show beside each token; None: no log-probabilities."""
    score_prompt: bool = False


def resolve_call(
    body: GenerationBody, prompts: Sequence[Prompt], asked: Asked, around: Circumstances, output: Output
) -> Call:
    check_ends(body, output)
    n = choices(body.n, limit=around.options.max_choices, param="n")
    best_of = n if asked.best_of is None else asked.best_of
    check_sequences(len(prompts), best_of, limit=around.options.max_sequences)
    call_id = asked.id_prefix + secrets.token_hex(12)
    requests = _Requests(call_id, body, asked, around, output)
    return Call(
        id=call_id,
        model=around.options.served(body.model),
        created=int(time.time()),
        fingerprint=fingerprint(around.info),
        prompts=tuple(prompts),
        requests=requests.for_prompts(prompts, best_of, ranked=best_of > n),
        n=n,
        best_of=best_of,
        priority=requests.priority,
        stream=bool(body.stream),
        include_usage=include_usage(body),
        timeout_s=body.timeout,
        max_output_tokens=(asked.max_tokens or 0) * best_of * len(prompts),
        service_tier=body.service_tier,
        metadata=body.metadata,
        shown_logprobs=asked.logprobs,
        calls=output.calls,
    )


def fingerprint(info: ModelInfo) -> str:
    """Equal as long as this version serves this file."""
    facts = f"{PurePath(info.path).name}|{info.file_bytes}|{info.description}"
    return f"fp_{__version__}_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"


class _Requests:
    """Builds the requests of one call: alike but for their prompts and seeds."""

    def __init__(
        self, call_id: str, body: GenerationBody, asked: Asked, around: Circumstances, output: Output
    ) -> None:
        self._id = call_id
        self._constraint = output.constraint
        # What the model writes between text and calls is for the reader of its output to see.
        self._show_control_tokens = output.calls is not None
        self._asked = asked
        self._context = around.info.context_limit
        self._options = around.options
        self._sampling = sampling_of(body, vocab_size=around.info.vocab_size)
        self._stop = stop_strings(body)
        self._client = Client.of(around.identity, body.user or body.safety_identifier).label
        self._namespace = cache_namespace(
            salt=body.cache_salt, key=around.identity.digest if around.options.isolate_by_key else None
        )
        self.priority = priority_of(
            header=around.priority_header,
            field=body.priority,
            tier=body.service_tier,
            default=around.options.default_priority,
        )

    def for_prompts(
        self, prompts: Sequence[Prompt], best_of: int, *, ranked: bool
    ) -> tuple[GenerationRequest, ...]:
        """`ranked`: log-probabilities are needed to choose the best, whether shown or not."""
        top_logprobs = 0 if ranked and self._asked.logprobs is None else self._asked.logprobs
        return tuple(
            self._request(prompt, index * best_of + choice, choice, top_logprobs)
            for index, prompt in enumerate(prompts)
            for choice in range(best_of)
        )

    def _request(self, prompt: Prompt, index: int, choice: int, top: int | None) -> GenerationRequest:
        return GenerationRequest(
            id=f"{self._id}/{index}",
            tokens=prompt.tokens,
            max_tokens=output_tokens(
                self._asked.max_tokens,
                prompt_tokens=len(prompt.tokens),
                context=self._context,
                param=self._asked.prompt_param,
                max_prompt=self._options.max_prompt_tokens,
                max_output=self._options.max_output_tokens,
            ),
            sampling=for_choice(self._sampling, choice),
            priority=self.priority,
            stop=self._stop,
            top_logprobs=top,
            prompt_logprobs=self._asked.score_prompt,
            client=self._client,
            cache_namespace=self._namespace,
            constraint=self._constraint,
            show_control_tokens=self._show_control_tokens,
        )
