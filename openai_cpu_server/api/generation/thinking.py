"""Pure functions that plan the model's reasoning and its constraint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from openai_cpu_server.api.generation.call import CallThinking
from openai_cpu_server.api.generation.output import PlannedOutput
from openai_cpu_server.api.generation.params import ReasoningParam
from openai_cpu_server.api.generation.schema import ReasoningBody
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.request import Constraint, Thinking
from openai_cpu_server.errors import wrong
from openai_cpu_server.http.parse import Body
from openai_cpu_server.models.served import ModelThinking
from openai_cpu_server.prompt.chat_prompts import ChatPrompt
from openai_cpu_server.prompt.reasoning import ReasoningFormat, ThinkingStage, switch

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


Sent = tuple[str, T]
"""Path and value of a field that the client has sent."""


def reasoning_param(
    *,
    efforts: Sequence[Sent[str]] = (),
    switches: Sequence[Sent[bool]] = (),
    budgets: Sequence[Sent[int]] = (),
    variables: Mapping[str, object] | None = None,
    is_hidden: bool = False,
) -> ReasoningParam:
    """Combine fields, which must agree; an effort also switches. Raises InvalidRequest."""
    variables = dict(variables or {})
    for name in variables:
        if name in _OURS or not _VARIABLE.fullmatch(name):
            shown = name[:64]
            message = f"'{shown}' is no variable of a chat template that a request can set."
            raise wrong(message, f"chat_template_kwargs.{shown}")
    efforts = [(path, _EFFORT_NAMES.get(effort, effort)) for path, effort in efforts]
    by_effort = [(path, effort != "none") for path, effort in efforts]
    by_variable = [
        (f"chat_template_kwargs.{name}", value)
        for name in _SWITCHES
        if isinstance(value := variables.get(name), bool)
    ]
    return ReasoningParam(
        effort=_one(efforts),
        is_on=_one([*by_effort, *switches, *by_variable]),
        budget=_one(budgets),
        is_hidden=is_hidden,
        variables=variables,
        paths=tuple(path for path, _ in (*efforts, *budgets)),
    )


def thinking_of(body: ReasoningBody) -> ReasoningParam:
    """Read the fields of a body. Raises InvalidRequest for contradictions."""
    by_budget = [(path, budget > 0) for path, budget in sent_fields(body, "reasoning.max_tokens")]
    by_type = [
        (path, kind == "enabled")
        for path, kind in sent_fields(body, "thinking.type")
        if kind in ("enabled", "disabled")
    ]
    names = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens")
    is_excluded = body.reasoning is not None and body.reasoning.exclude is True
    return reasoning_param(
        efforts=sent_fields(body, "reasoning_effort", "reasoning.effort"),
        switches=[*sent_fields(body, "enable_thinking", "reasoning.enabled"), *by_budget, *by_type],
        budgets=sent_fields(body, *names, "reasoning.max_tokens", "thinking.budget_tokens"),
        variables=body.chat_template_kwargs,
        is_hidden=is_excluded or body.include_reasoning is False,
    )


def sent_fields(body: Body, *paths: str) -> list[Sent[Any]]:
    values = []
    for path in paths:
        value: Any = body
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        if value is not None:
            values.append((path, value))
    return values


def _one(sent: Sequence[Sent[T]]) -> T | None:
    if not sent:
        return None
    path, value = sent[0]
    for other, contrary in sent[1:]:
        if contrary != value:
            raise wrong(f"'{path}' and '{other}' say different things about the model's thinking.", other)
    return value


def thinking_plan(param: ReasoningParam, model: ModelThinking | None) -> ThinkingPlan:
    """`model`: None if it does not reason. Variables reach its template all the same."""
    is_on = param.is_on if param.is_on is not None or model is None else model.is_on
    budget = None if model is None else _budget(param, model)
    if budget == 0:
        is_on = False
    variables: dict[str, object] = {} if is_on is None else {**switch(is_on)}
    effort = param.effort if model is None or is_on is not False else "none"
    if effort is not None:
        variables["reasoning_effort"] = effort if model is None else _nearest(effort, model.form.efforts)
    if model is None:
        return ThinkingPlan(
            {**variables, **param.variables}, is_on=None, thinks_not=False, budget=None, is_hidden=False
        )
    if budget is not None or is_on is False:
        variables["thinking_budget"] = budget if is_on is not False else 0  # Seed-OSS reads it
    return ThinkingPlan(
        variables={**variables, **param.variables},
        is_on=is_on,
        thinks_not=is_on is False and not model.form.efforts,
        budget=budget if is_on is not False else None,
        is_hidden=param.is_hidden,
    )


def _budget(param: ReasoningParam, model: ModelThinking) -> int | None:
    if param.budget is not None:
        return param.budget if param.budget >= 0 else None
    if param.effort is not None and param.effort != "none" and not model.template.reads_effort:
        return EFFORT_BUDGETS.get(param.effort)
    return model.budget


def _nearest(effort: str, efforts: Sequence[str]) -> str:
    place = _EFFORTS.index(effort) if efforts else 0
    return min(efforts, key=lambda each: abs(_EFFORTS.index(each) - place), default=effort)


@dataclass(frozen=True)
class ThinkingOutputs:
    form: ReasoningFormat
    tokenizer: Tokenizer

    def plan(
        self, output: PlannedOutput, plan: ThinkingPlan, prompt: ChatPrompt, *, has_stop: bool
    ) -> PlannedOutput:
        """Return the output behind this prompt. Its form and stop strings apply to the answer alone."""
        form, stage = self.form, prompt.stage
        if stage is ThinkingStage.BEHIND and not form.answer_end:
            return output
        shown = CallThinking(form, stage, plan.is_hidden)
        marks = self._tokens(form.begin + form.end + form.answer_begin)
        are_silent = any(not self.tokenizer.piece(token) for token in marks)
        output = msgspec.structs.replace(output, thinking=shown, shows_marks=are_silent)
        if stage is ThinkingStage.BEHIND:
            return output
        constraint = output.constraint or Constraint()
        # The grammars of calls in channels tell of thoughts themselves.
        has_thoughts = form.has_channels and output.tool_calls is not None
        is_ruled = constraint.grammar is not None and not constraint.triggers
        is_open = stage is ThinkingStage.WITHIN
        if is_ruled and not (is_open or plan.is_on is True or prompt.wants_thoughts or form.efforts):
            return output
        answer_begin = form.answer_begin if output.tool_calls is None else form.turn_begin
        ending = self._constraint(constraint, plan, stage, answer_begin)
        output = msgspec.structs.replace(output, thinking=msgspec.structs.replace(shown, ending=ending))
        is_complete = constraint.grammar is None or (has_thoughts and not is_open)
        if is_complete and plan.budget is None and not has_stop:
            return output
        if plan.budget is None and ending.thinking is not None:
            # Reasoning stays open until its end is requested.
            thinking = msgspec.structs.replace(ending.thinking, closing=())
            ending = msgspec.structs.replace(ending, thinking=thinking)
        return msgspec.structs.replace(output, constraint=ending)

    def _constraint(
        self, constraint: Constraint, plan: ThinkingPlan, stage: ThinkingStage, answer_begin: str
    ) -> Constraint:
        form = self.form
        is_ruled = constraint.grammar is not None and not constraint.triggers
        is_open = stage is ThinkingStage.WITHIN
        behind = answer_begin if constraint.grammar is None else ""
        last_words = "" if plan.budget == 0 else _LAST_WORDS
        thinking = Thinking(
            begin="" if is_open else form.begin,
            end=form.end,
            opening=self._tokens(form.begin) if is_ruled and not is_open else (),
            shown_behind=form.answer_alone if form.has_channels else "",
            budget=plan.budget,
            closing=self._tokens(last_words + form.end + behind),
        )
        before = self._tokens(form.gap + answer_begin) if is_ruled else ()
        return msgspec.structs.replace(constraint, thinking=thinking, opening=(*before, *constraint.opening))

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special=False, parse_special=True))
