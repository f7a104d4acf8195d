"""`POST /v1/completions`."""

from __future__ import annotations

from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.parse import parse
from openai_cpu_server.api.render.completion import CompletionRenderer
from openai_cpu_server.api.render.pieces import Pieces
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.calls import Asked, Circumstances, resolve_call
from openai_cpu_server.api.resolve.grammars import Grammars
from openai_cpu_server.api.resolve.limits import choices
from openai_cpu_server.api.resolve.output import of_answer
from openai_cpu_server.api.resolve.prompts import completion_prompts
from openai_cpu_server.api.routes.family import Resolved
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.errors import InvalidRequest


class CompletionFamily:
    def __init__(self, pieces: Pieces, grammars: Grammars) -> None:
        self._tokenizer = pieces.tokenizer
        self._grammars = grammars
        self.renderer = CompletionRenderer(pieces)

    def resolve(self, data: bytes, around: Circumstances) -> Resolved:
        body, ignored = parse(CompletionBody, data, lenient=around.options.lenient)
        around.options.served(body.model)
        asked = Asked(
            id_prefix="cmpl-",
            prompt_param="prompt",
            max_tokens=body.max_tokens,
            best_of=_best_of(body, around.options),
            logprobs=body.logprobs,
            score_prompt=bool(body.echo) and body.logprobs is not None,
        )
        prompts = completion_prompts(body, self._tokenizer)
        output = of_answer(answer_grammar(body, self._grammars))
        call = resolve_call(body, prompts, asked, around, output)
        return Resolved(call, ignored, output.unenforced)


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
