"""A conversation becomes a `Call`: for every family whose bodies can be told as a chat's."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.calls.call import Asking, Call, Prompt
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.call import resolve_call
from openai_cpu_server.api.resolve.limits import asked_tokens
from openai_cpu_server.api.resolve.messages import checked_messages
from openai_cpu_server.api.resolve.output import Output, ToolOutputs, of_answer
from openai_cpu_server.api.resolve.thinking import ThinkingOutputs, Wish, thinking_plan, thinking_wish
from openai_cpu_server.api.resolve.tools import ToolPlan, tool_plan
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.parse import Ignored
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.served import ServedModel


def resolve_chat(body: ChatBody, asking: Asking, *, id_prefix: str, prompt_param: str = "messages") -> Call:
    """`prompt_param`: the field that is named when the prompt is too long."""
    logprobs, plan, model = _logprobs(body), tool_plan(body), asking.chosen.model
    output = _output(body, plan, model)
    messages = checked_messages(body.messages)
    wish = thinking_wish(body)
    thinking = thinking_plan(wish, model.thinking)
    prompt = model.prompts.prompt(
        messages,
        plan.shown if plan else (),
        variables=thinking.variables,
        thinks_not=thinking.thinks_not,
    )
    if model.thinking is not None:
        outputs = ThinkingOutputs(model.thinking.form, model.tokenizer)
        output = outputs.of(output, thinking, prompt, has_stop=bool(body.stop))
    return resolve_call(
        body,
        [Prompt(prompt.tokens)],
        _with_ignored(asking, wish),
        output,
        id_prefix=id_prefix,
        prompt_param=prompt_param,
        max_tokens=asked_tokens(body),
        logprobs=logprobs,
    )


def _with_ignored(asking: Asking, wish: Wish) -> Asking:
    """A model that does not think leaves out what is said about that."""
    if asking.chosen.model.thinking is not None or not wish.said:
        return asking
    ignored = Ignored((*asking.ignored.names, *wish.said))
    return msgspec.structs.replace(asking, ignored=ignored)


def _output(body: ChatBody, plan: ToolPlan | None, model: ServedModel) -> Output:
    answer = answer_grammar(body, model.grammars)
    if plan is None:
        return of_answer(answer)
    return ToolOutputs(model.tool_format, model.grammars, model.tokenizer).of_plan(plan, answer)


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        message = "'top_logprobs' is only allowed together with 'logprobs'."
        raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
    return None
