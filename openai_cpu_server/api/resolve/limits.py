"""How much a call may ask for: output tokens, choices, stop strings, the stream's options."""

from __future__ import annotations

from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.errors import InvalidRequest, PromptTooLong


def output_tokens(
    asked: int | None,
    *,
    prompt_tokens: int,
    context: int,
    param: str,
    max_prompt: int | None = None,
    max_output: int | None = None,
) -> int:
    """The most output tokens. Without `asked` it is all that the context leaves, one at least.

    `max_prompt` and `max_output` are the server's own limits.
    """
    if max_prompt is not None and prompt_tokens > max_prompt:
        message = f"The prompt has {prompt_tokens} tokens; this server takes at most {max_prompt}."
        raise InvalidRequest(message, param=param, code="context_length_exceeded")
    if asked is not None and max_output is not None and asked > max_output:
        message = f"Invalid value for 'max_tokens': this server allows at most {max_output}."
        raise InvalidRequest(message, param="max_tokens", code="invalid_value")
    wanted = max(1, context - prompt_tokens) if asked is None else asked
    if asked is None and max_output is not None:
        wanted = min(wanted, max_output)
    if prompt_tokens + wanted > context:
        raise PromptTooLong(prompt_tokens=prompt_tokens, max_tokens=wanted, limit=context, param=param)
    return wanted


def asked_tokens(body: ChatBody) -> int | None:
    """`max_completion_tokens`, or `max_tokens`, its older name."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequest(
            "'max_tokens' and 'max_completion_tokens' name the same limit but differ; give one of them.",
            param="max_tokens",
            code="invalid_value",
        )
    return old if new is None else new


def choices(value: int | None, *, limit: int, param: str) -> int:
    if value is not None and value > limit:
        message = f"Invalid value for '{param}': this server allows at most {limit}."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return 1 if value is None else value


def num_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> int:
    """How many prompts a body's `prompt` is, before any of them is tokenised."""
    return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)


def check_sequences(num_prompts: int, best_of: int, *, limit: int) -> None:
    """Raises InvalidRequest for a call that is many calls."""
    if num_prompts * best_of > limit:
        message = f"{num_prompts} prompts with {best_of} choices each: one call may have {limit} in all."
        raise InvalidRequest(message, param="prompt", code="invalid_value")


def stop_strings(body: GenerationBody) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def include_usage(body: GenerationBody) -> bool:
    """Raises InvalidRequest for `stream_options` without a stream."""
    if body.stream_options is None:
        return False
    if not body.stream:
        message = "'stream_options' is only allowed together with 'stream'."
        raise InvalidRequest(message, param="stream_options", code="invalid_value")
    return bool(body.stream_options.include_usage)
