"""Pure functions that plan the model's reasoning and its constraint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import Field

from openai_cpu_server.api.generation.call import CallThinking
from openai_cpu_server.api.generation.output import PlannedOutput
from openai_cpu_server.api.generation.params import ReasoningParam
from openai_cpu_server.api.generation.schema import Budget, Count, Effort, JsonObject, OpenBody
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.request import Constraint, Thinking
from openai_cpu_server.errors import wrong
from openai_cpu_server.http.parse import Body
from openai_cpu_server.models.served import ModelThinking
from openai_cpu_server.prompt.chat_prompts import ChatPrompt
from openai_cpu_server.prompt.reasoning import ReasoningFormat, ThinkingStage, switch


class OpenRouterReasoning(OpenBody):
    effort: Effort | None = None
    max_tokens: Count | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ThinkingSwitch(OpenBody):
    """Anthropic's object, also of DeepSeek, GLM and Kimi in chat completions."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Count | None = None


class ReasoningBody(Body):
    """Fields about reasoning. Those with one meaning must agree."""

    reasoning_effort: Effort | None = None
    reasoning: OpenRouterReasoning | None = None
    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None
    """vLLM's name."""
    thinking_budget_tokens: Budget | None = None
    """llama-server's name, like the next."""
    reasoning_budget_tokens: Budget | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: Annotated[JsonObject, Field(max_length=64)] | None = None


EFFORT_BUDGETS = {"minimal": 256, "low": 1024, "medium": 4096}
"""Reasoning tokens for templates that ignore the effort. `low` is LiteLLM's number, its neighbours a
quarter and four times that."""
_EFFORT_NAMES = {"max": "xhigh"}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_LAST_WORDS = "\n\nI have thought long enough and give my answer now.\n"
"""Text at the end of the budget. Without it many models go on reasoning in the answer."""
_SWITCHES = ("enable_thinking", "thinking")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OURS = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
    | {"raise_exception", "strftime_now", "range", "dict", "namespace", "cycler", "joiner"}
)
"""Template variables that a request cannot set."""
T = TypeVar("T")


class ThinkingPlan(msgspec.Struct, frozen=True):
    variables: Mapping[str, object]
    is_on: bool | None
    """Decided by the template if None."""
    thinks_not: bool
    """True if the prompt must close the reasoning."""
    budget: int | None
    is_hidden: bool


Said = tuple[str, T]


def asked_thinking(
    *,
    efforts: Sequence[Said[str]] = (),
    switches: Sequence[Said[bool]] = (),
    budgets: Sequence[Said[int]] = (),
    variables: Mapping[str, object] | None = None,
    is_hidden: bool = False,
) -> ReasoningParam:
    """Combine fields, which must agree; an effort also switches. Raises InvalidRequest."""
    known = _variables(variables or {})
    efforts = [(path, _EFFORT_NAMES.get(effort, effort)) for path, effort in efforts]
    by_effort = [(path, effort != "none") for path, effort in efforts]
    return ReasoningParam(
        effort=_one(efforts),
        is_on=_one([*by_effort, *switches, *_switched(known)]),
        budget=_one(budgets),
        is_hidden=is_hidden,
        variables=known,
        paths=tuple(path for path, _ in (*efforts, *budgets)),
    )


def thinking_of(body: ReasoningBody) -> ReasoningParam:
    """Read the fields of a body. Raises InvalidRequest for contradictions."""
    reasoning = body.reasoning or OpenRouterReasoning()
    by_budget = [(path, told > 0) for path, told in said_by(body, "reasoning.max_tokens")]
    by_type = [(path, kind == "enabled") for path, kind in said_by(body, "thinking.type")]
    names = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens")
    return asked_thinking(
        efforts=said_by(body, "reasoning_effort", "reasoning.effort"),
        switches=[
            *said_by(body, "enable_thinking", "reasoning.enabled"),
            *by_budget,
            *(by_type if body.thinking and body.thinking.type in ("enabled", "disabled") else ()),
        ],
        budgets=said_by(body, *names, "reasoning.max_tokens", "thinking.budget_tokens"),
        variables=body.chat_template_kwargs,
        is_hidden=reasoning.exclude is True or body.include_reasoning is False,
    )


def said_by(body: Body, *paths: str) -> list[Said[Any]]:
    values = [(path, reduce(_field, path.split("."), body)) for path in paths]
    return [(path, value) for path, value in values if value is not None]


def _field(of: object, name: str) -> Any:
    return None if of is None else getattr(of, name)


def thinking_plan(wish: ReasoningParam, model: ModelThinking | None) -> ThinkingPlan:
    """`model`: None if it does not reason. Variables reach its template all the same."""
    if model is None:
        return _for_template(wish)
    is_on = model.is_on if wish.is_on is None else wish.is_on
    budget = _budget(wish, model)
    if budget == 0:
        is_on = False
    variables: dict[str, object] = {} if is_on is None else {**switch(is_on)}
    effort = wish.effort if is_on is not False else "none"
    if effort is not None:
        variables["reasoning_effort"] = _nearest(effort, model.form.efforts)
    if budget is not None or is_on is False:
        variables["thinking_budget"] = budget if is_on is not False else 0  # Seed-OSS reads it
    return ThinkingPlan(
        variables={**variables, **wish.variables},
        is_on=is_on,
        thinks_not=is_on is False and not model.form.efforts,
        budget=budget if is_on is not False else None,
        is_hidden=wish.is_hidden,
    )


def _for_template(wish: ReasoningParam) -> ThinkingPlan:
    said: dict[str, object] = {} if wish.is_on is None else {**switch(wish.is_on)}
    if wish.effort is not None:
        said["reasoning_effort"] = wish.effort
    variables = {**said, **wish.variables}
    return ThinkingPlan(variables, is_on=None, thinks_not=False, budget=None, is_hidden=False)


class ThinkingOutputs:
    def __init__(self, form: ReasoningFormat, tokenizer: Tokenizer) -> None:
        self._form = form
        self._tokenizer = tokenizer

    def plan(
        self, output: PlannedOutput, plan: ThinkingPlan, prompt: ChatPrompt, *, has_stop: bool
    ) -> PlannedOutput:
        """Return the output behind this prompt. Its form and stop strings apply to the answer alone."""
        form = self._form
        if prompt.stage is ThinkingStage.BEHIND and not form.answer_end:
            return output
        shown = CallThinking(form, prompt.stage, plan.is_hidden)
        output = msgspec.structs.replace(output, thinking=shown, shows_marks=self._has_silent_marks())
        if prompt.stage is ThinkingStage.BEHIND:
            return output
        constraint = output.constraint or Constraint()
        # The grammars of calls in channels tell of thoughts themselves.
        knows_thoughts = form.has_channels and output.tool_calls is not None
        goes_on = knows_thoughts and prompt.stage is ThinkingStage.WITHIN
        is_ruled = constraint.grammar is not None and not constraint.triggers
        always = bool(form.efforts)
        is_sure = (
            prompt.stage is ThinkingStage.WITHIN or plan.is_on is True or prompt.wants_thoughts or always
        )
        if is_ruled and not is_sure:
            return output
        answer_begin = form.answer_begin if output.tool_calls is None else form.turn_begin
        ending = self._constraint(constraint, plan, prompt.stage, answer_begin)
        output = msgspec.structs.replace(output, thinking=msgspec.structs.replace(shown, ending=ending))
        is_all_told = constraint.grammar is None or (knows_thoughts and not goes_on)
        if is_all_told and plan.budget is None and not has_stop:
            return output
        shaped = ending if plan.budget is not None else _without_closing(ending)
        return msgspec.structs.replace(output, constraint=shaped)

    def _constraint(
        self, constraint: Constraint, plan: ThinkingPlan, stage: ThinkingStage, answer_begin: str
    ) -> Constraint:
        form = self._form
        is_ruled = constraint.grammar is not None and not constraint.triggers
        is_open = stage is ThinkingStage.WITHIN
        behind = answer_begin if constraint.grammar is None else ""
        done_marker = "" if plan.budget == 0 else _LAST_WORDS
        thinking = Thinking(
            begin="" if is_open else form.begin,
            end=form.end,
            opening=self._tokens(form.begin) if is_ruled and not is_open else (),
            shown_behind=form.answer_alone if form.has_channels else "",
            budget=plan.budget,
            closing=self._tokens(done_marker + form.end + behind),
        )
        before = self._tokens(form.gap + answer_begin) if is_ruled else ()
        return msgspec.structs.replace(constraint, thinking=thinking, opening=(*before, *constraint.opening))

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special=False, parse_special=True))

    def _has_silent_marks(self) -> bool:
        tokens = self._tokens(self._form.begin + self._form.end + self._form.answer_begin)
        return any(not self._tokenizer.piece(token) for token in tokens)


def _without_closing(ending: Constraint) -> Constraint:
    """Leave reasoning open until its end is requested."""
    assert ending.thinking is not None, "it tells of thoughts"
    return msgspec.structs.replace(ending, thinking=msgspec.structs.replace(ending.thinking, closing=()))


def _budget(wish: ReasoningParam, model: ModelThinking) -> int | None:
    if wish.budget is not None:
        return wish.budget if wish.budget >= 0 else None
    if wish.effort is not None and wish.effort != "none" and not model.template.reads_effort:
        return EFFORT_BUDGETS.get(wish.effort)
    return model.budget


def _nearest(effort: str, known: Sequence[str]) -> str:
    if not known:
        return effort
    place = _EFFORTS.index(effort)
    return min(known, key=lambda each: abs(_EFFORTS.index(each) - place))


def _switched(variables: Mapping[str, object]) -> Iterator[Said[bool]]:
    for name in _SWITCHES:
        value = variables.get(name)
        if isinstance(value, bool):
            yield f"chat_template_kwargs.{name}", value


def _one(said: Sequence[Said[T]]) -> T | None:
    if not said:
        return None
    path, value = said[0]
    for other, contrary in said[1:]:
        if contrary != value:
            raise wrong(f"'{path}' and '{other}' say different things about the model's thinking.", other)
    return value


def _variables(given: Mapping[str, object]) -> dict[str, object]:
    for name in given:
        if name in _OURS or not _VARIABLE.fullmatch(name):
            shown = name[:64]
            message = f"'{shown}' is no variable of a chat template that a request can set."
            raise wrong(message, f"chat_template_kwargs.{shown}")
    return dict(given)
