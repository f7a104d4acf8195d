"""`POST /v1/completions`."""

from __future__ import annotations

from openai_cpu_server.api.calls.call import Asking, Call
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.completion import CompletionRenderer
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.call import resolve_call
from openai_cpu_server.api.resolve.limits import check_sequences, choices, num_prompts
from openai_cpu_server.api.resolve.output import of_answer
from openai_cpu_server.api.resolve.prompts import completion_prompts
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.api.schemas.parse import Ignored, parse
from openai_cpu_server.errors import InvalidRequest


class CompletionFamily:
    renderer = CompletionRenderer()

    def read(self, data: bytes, *, lenient: bool) -> tuple[CompletionBody, Ignored]:
        return parse(CompletionBody, data, lenient=lenient)

    def resolve(self, body: CompletionBody, asking: Asking) -> Call:
        best_of, model = _best_of(body, asking.options), asking.chosen.model
        each = best_of or choices(body.n, limit=asking.options.max_choices, param="n")
        check_sequences(num_prompts(body.prompt), each, limit=asking.options.max_sequences)
        return resolve_call(
            body,
            completion_prompts(body, model.tokenizer, asking.info.context_limit),
            asking,
            of_answer(answer_grammar(body, model.grammars)),
            id_prefix="cmpl-",
            prompt_param="prompt",
            max_tokens=body.max_tokens,
            best_of=best_of,
            logprobs=body.logprobs,
            score_prompt=bool(body.echo) and body.logprobs is not None,
        )


def _best_of(body: CompletionBody, options: ApiOptions) -> int | None:
    if body.best_of is None:
        return None
    best_of = choices(body.best_of, limit=options.max_choices, param="best_of")
    n = body.n or 1
    if best_of < n:
        raise _wrong("'best_of' must not be smaller than 'n'.")
    if best_of > n and body.stream:
        raise _wrong("'best_of' above 'n' cannot be streamed: the best is known at the end only.")
    return best_of


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="best_of", code="invalid_value")
