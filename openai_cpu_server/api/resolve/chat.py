"""A conversation becomes a `Call`: for every family whose bodies can be told as a chat's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from openai_cpu_server.api.calls.call import Asking, Call, Prompt
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.call import resolve_call
from openai_cpu_server.api.resolve.last_turn import last_turn
from openai_cpu_server.api.resolve.limits import asked_tokens
from openai_cpu_server.api.resolve.messages import checked_messages
from openai_cpu_server.api.resolve.output import Output, ToolOutputs, of_answer
from openai_cpu_server.api.resolve.tools import ToolPlan, tool_plan
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.chat_prompts import NOTHING
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.models.written import Written


def resolve_chat(
    body: ChatBody,
    asking: Asking,
    *,
    id_prefix: str,
    prompt_param: str = "messages",
    written: Written = NOTHING,
) -> Call:
    """`prompt_param`: the field that is named when the prompt is too long. `written`: what the model wrote
    for some messages."""
    logprobs, plan, model = _logprobs(body), tool_plan(body), asking.chosen.model
    output = _output(body, plan, model)
    messages, rendered = checked_messages(body.messages), _rendering(plan, model, written)
    compares = asking.options.compares_turns and body.cache is not False
    turn = last_turn(messages, rendered) if compares else None
    return resolve_call(
        body,
        [Prompt(rendered(messages), turn=turn)],
        asking,
        output,
        id_prefix=id_prefix,
        prompt_param=prompt_param,
        max_tokens=asked_tokens(body),
        logprobs=logprobs,
    )


def chat_prompt(body: ChatBody, model: ServedModel, written: Written = NOTHING) -> Prompt:
    """The prompt that `resolve_chat` makes. Raises InvalidRequest, TemplateFailed."""
    rendered = _rendering(tool_plan(body), model, written)
    return Prompt(rendered(checked_messages(body.messages)))


def _rendering(
    plan: ToolPlan | None, model: ServedModel, written: Written
) -> Callable[[Sequence[Mapping[str, object]]], tuple[int, ...]]:
    """Makes a prompt's tokens of messages."""
    return partial(model.prompts.tokens, tools=plan.shown if plan else (), written=written)


def _output(body: ChatBody, plan: ToolPlan | None, model: ServedModel) -> Output:
    answer = answer_grammar(body, model.grammars)
    if plan is None:
        return of_answer(answer)
    if model.tool_format is None:
        message = (
            "The model's chat template has no way of calling tools that this server knows;"
            " start it with --tool-format."
        )
        raise InvalidRequest(message, param="tools", code="unsupported_parameter")
    return ToolOutputs(model.tool_format, model.grammars, model.tokenizer).of_plan(plan, answer)


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        message = "'top_logprobs' is only allowed together with 'logprobs'."
        raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
    return None
