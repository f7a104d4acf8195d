"""`POST /v1/chat/completions`."""

from __future__ import annotations

from openai_cpu_server.api.call import Prompt
from openai_cpu_server.api.parse import parse
from openai_cpu_server.api.render.chat import ChatRenderer
from openai_cpu_server.api.render.pieces import Pieces
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.calls import Asked, Circumstances, resolve_call
from openai_cpu_server.api.resolve.chat_prompts import ChatPrompts
from openai_cpu_server.api.resolve.grammars import Grammars
from openai_cpu_server.api.resolve.limits import asked_tokens
from openai_cpu_server.api.resolve.output import Output, ToolOutputs, of_answer
from openai_cpu_server.api.resolve.tools import ToolPlan, tool_plan
from openai_cpu_server.api.routes.family import Resolved
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.errors import InvalidRequest


class ChatFamily:
    def __init__(
        self, prompts: ChatPrompts, pieces: Pieces, grammars: Grammars, tools: ToolOutputs | None
    ) -> None:
        """`tools`: None for a model whose way of calling them is unknown."""
        self._prompts = prompts
        self._grammars = grammars
        self._tools = tools
        self.renderer = ChatRenderer(pieces)

    def resolve(self, data: bytes, around: Circumstances) -> Resolved:
        body, ignored = parse(ChatBody, data, lenient=around.options.lenient)
        around.options.served(body.model)
        asked = Asked(
            id_prefix="chatcmpl-",
            prompt_param="messages",
            max_tokens=asked_tokens(body),
            logprobs=_logprobs(body),
        )
        plan = tool_plan(body)
        output = self._output(plan, body)
        prompt = Prompt(self._prompts.tokens(body.messages, plan.shown if plan else ()))
        call = resolve_call(body, [prompt], asked, around, output)
        return Resolved(call, ignored, output.unenforced)

    def _output(self, plan: ToolPlan | None, body: ChatBody) -> Output:
        answer = answer_grammar(body, self._grammars)
        if plan is None:
            return of_answer(answer)
        if self._tools is None:
            message = (
                "The model's chat template has no way of calling tools that this server knows;"
                " start it with --tool-format."
            )
            raise InvalidRequest(message, param="tools", code="unsupported_parameter")
        return self._tools.of_plan(plan, answer)


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        message = "'top_logprobs' is only allowed together with 'logprobs'."
        raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
    return None
