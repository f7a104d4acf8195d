"""A conversation becomes a `Call`: for every family whose bodies can be told as a chat's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from openai_cpu_server.api.calls.call import Asking, Call, Prompt
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.call import resolve_call
from openai_cpu_server.api.resolve.last_turn import last_turn
from openai_cpu_server.api.resolve.limits import asked_tokens
from openai_cpu_server.api.resolve.messages import checked_messages
from openai_cpu_server.api.resolve.output import Output, ToolOutputs, of_answer
from openai_cpu_server.api.resolve.thinking import (
    ThinkingOutputs,
    ThinkingPlan,
    Wish,
    thinking_plan,
    thinking_wish,
)
from openai_cpu_server.api.resolve.tools import ToolPlan, tool_plan
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.parse import Ignored
from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation
from openai_cpu_server.prompt.written import Written

UNCHANGED: Mapping[str, str] = {}
NOTHING: Written = {}


def resolve_chat(
    body: ChatBody,
    asking: Asking,
    *,
    id_prefix: str,
    prompt_param: str = "messages",
    names: Mapping[str, str] = UNCHANGED,
    written: Written = NOTHING,
) -> Call:
    """`prompt_param`: the field that is named when the prompt is too long. `names`: what the client calls
    fields that it has not written as a chat has them. `written`: what the model wrote for some messages."""
    logprobs, plan, model = _logprobs(body), tool_plan(body), asking.chosen.model
    output = _output(body, plan, model)
    wish = thinking_wish(body)
    thinking = thinking_plan(wish, model.thinking)
    messages = checked_messages(body.messages)
    rendered = _rendering(plan, model, thinking, wish, written, most_tokens=asking.info.context_limit)
    prompt = _naming(prompt_param, partial(rendered, messages))
    if model.thinking is not None:
        outputs = ThinkingOutputs(model.thinking.form, model.tokenizer)
        output = outputs.of(output, thinking, prompt, has_stop=bool(body.stop))
    compares = asking.options.compares_turns and body.cache is not False
    turn = last_turn(messages, lambda told: rendered(told).tokens) if compares else None
    return resolve_call(
        body,
        [Prompt(prompt.tokens, turn=turn)],
        _with_ignored(asking, [names.get(name, name) for name in wish.said]),
        output,
        id_prefix=id_prefix,
        prompt_param=prompt_param,
        max_tokens=asked_tokens(body),
        logprobs=logprobs,
    )


def _with_ignored(asking: Asking, said: Sequence[str]) -> Asking:
    """A model that does not think leaves out what is said about that."""
    if asking.chosen.model.thinking is not None or not said:
        return asking
    ignored = Ignored((*asking.ignored.names, *said))
    return msgspec.structs.replace(asking, ignored=ignored)


def chat_prompt(
    body: ChatBody, model: ServedModel, written: Written = NOTHING, *, param: str = "messages"
) -> Prompt:
    """The prompt that `resolve_chat` makes. `param`: the field that is named when it is too long to be
    counted. Raises InvalidRequest, TemplateFailed."""
    wish = thinking_wish(body)
    thinking = thinking_plan(wish, model.thinking)
    info = model.engine.info
    most_tokens = info.context_limit if info is not None else None
    rendered = _rendering(tool_plan(body), model, thinking, wish, written, most_tokens=most_tokens)
    return Prompt(_naming(param, partial(rendered, checked_messages(body.messages))).tokens)


def _rendering(
    plan: ToolPlan | None,
    model: ServedModel,
    thinking: ThinkingPlan,
    wish: Wish,
    written: Written,
    *,
    most_tokens: int | None,
) -> Callable[[Sequence[Mapping[str, object]]], ChatPrompt]:
    """Makes a prompt of messages."""

    def render(messages: Sequence[Mapping[str, object]], variables: Mapping[str, object]) -> ChatPrompt:
        return model.prompts.prompt(
            Conversation(
                messages=messages,
                tools=plan.shown if plan else (),
                written=written,
                variables=variables,
                thinks_not=thinking.thinks_not,
                most_tokens=most_tokens,
            )
        )

    def rendered(messages: Sequence[Mapping[str, object]]) -> ChatPrompt:
        try:
            return render(messages, thinking.variables)
        except TemplateFailed as error:
            own = {name: value for name, value in thinking.variables.items() if name not in wish.variables}
            if not wish.variables or _fails(partial(render, messages, own)):
                raise
            param = "chat_template_kwargs"
            raise InvalidRequest(str(error), param=param, code="chat_template_failed") from error

    return rendered


def _naming(param: str, render: Callable[[], ChatPrompt]) -> ChatPrompt:
    """Blames this field for a prompt that cannot be read."""
    try:
        return render()
    except InvalidRequest as error:
        if error.param is not None:
            raise
        raise InvalidRequest(str(error), param=param, code=error.code) from None


def _fails(render: Callable[[], ChatPrompt]) -> bool:
    try:
        render()
    except TemplateFailed:
        return True
    return False


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
