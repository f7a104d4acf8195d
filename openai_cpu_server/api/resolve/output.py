"""What the output must look like: the answer's grammar, that of tool calls, or both in one constraint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from openai_cpu_server.api.asking.ask import Ask, AskedForm, AskedFunction, JsonObject, ToolUse, wrong
from openai_cpu_server.api.calls.call import CallThinking, ToolCallStyle
from openai_cpu_server.api.resolve.parameters import SplitParameters
from openai_cpu_server.api.resolve.tools import ToolPlan
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.grammars import Grammar, Grammars
from openai_cpu_server.prompt.tool_formats import Callee, Spelling, ToolFormat

_MOST_SHARES = 3.0
"""All schemas of a call may cost so many times what one may: two or three seconds. (128 functions with four
`format`s each cost 2.2 times as much.)"""
_NO_PARAMETERS: JsonObject = {"type": "object", "additionalProperties": False}
_BLANKS = r"[ \t\n\r]{0,40}"
"""What flexible JSON may have between its tokens."""


class Output(msgspec.Struct, frozen=True):
    """The form of the output, as the engine and the renderer need it."""

    constraint: Constraint | None = None
    unenforced: tuple[str, ...] = ()
    tool_calls: ToolCallStyle | None = None
    """How to show tool calls; None: there are none."""
    is_free: bool = False
    """Text that is no tool call has no form that a stop string could break."""
    thinking: CallThinking | None = None
    """How to show thoughts; None: there are none."""
    shows_marks: bool = False
    """What marks the thoughts are control tokens."""


class AnswerForm(msgspec.Struct, frozen=True):
    """The form of the answer, and its grammar."""

    grammar: Grammar
    field: str
    """The client's field that asks for it."""

    @classmethod
    def of(cls, asked: AskedForm | None, grammars: Grammars) -> AnswerForm | None:
        """None: free text. Raises InvalidRequest."""
        return None if asked is None else cls(asked.make(grammars, asked.path), asked.field)


def of_answer(answer: AnswerForm | None) -> Output:
    if answer is None:
        return Output()
    return Output(Constraint(grammar=answer.grammar.lark), answer.grammar.unenforced)


def check_ends(ask: Ask, output: Output) -> None:
    """Refuses what would cut the output, or not let it end, against its grammar."""
    if output.constraint is None or output.constraint.grammar is None:
        return
    if ask.sampling.ignore_eos:
        raise _no_company("ignore_eos", "the output ends where its grammar ends")
    if ask.stop and not output.is_free:
        raise _no_company(ask.stop_path, "it could cut the output short")


def _no_company(path: str, why: str) -> InvalidRequest:
    return wrong(f"'{path}' cannot be combined with structured output or tools: {why}.", path)


class ToolOutputs:
    """Makes constraints of tool calls in one model's format."""

    def __init__(self, form: ToolFormat, grammars: Grammars, tokenizer: Tokenizer) -> None:
        self._form = form
        self._grammars = grammars
        blanks = _BLANKS if grammars.is_flexible else ""
        self._spelling = Spelling(blanks, partial(_control_token, tokenizer))

    def of_plan(self, plan: ToolPlan, answer: AnswerForm | None) -> Output:
        """`answer`: what text must look like, where there is text. Raises InvalidRequest."""
        offers = self._offers(plan, 0.0 if answer is None else answer.grammar.share)
        unenforced = tuple(path for offer in offers for path in offer.unenforced)
        constraint = self._constraint(plan, offers, answer)
        is_auto = plan.use is ToolUse.AUTO
        if answer is not None and is_auto:
            unenforced = answer.grammar.unenforced + unenforced
        style = ToolCallStyle(
            self._form,
            _reason(plan),
            plan.is_legacy,
            at_start=is_auto and answer is not None,
            functions={each.callee.name: self._form.raw_parameters(each.callee) for each in offers},
        )
        return Output(constraint, unenforced, style, is_free=is_auto and answer is None)

    def _offers(self, plan: ToolPlan, spent: float) -> list[_Offer]:
        """`spent`: what the answer's grammar has cost. Raises InvalidRequest where all cost too much."""
        offers: list[_Offer] = []
        for index, function in enumerate(plan.callable):
            offers.append(self._offer(index, function))
            spent += offers[-1].share
            if spent > _MOST_SHARES:
                message = (
                    "The schemas of this call are too large together: all may cost three times what one may; "
                    "use fewer tools, or simpler patterns."
                )
                raise wrong(message, function.schema_path)
        return offers

    def _constraint(self, plan: ToolPlan, offers: Sequence[_Offer], answer: AnswerForm | None) -> Constraint:
        form, several = self._form, plan.several
        callees = [offer.callee for offer in offers]
        parts = {rule: part for offer in offers for rule, part in offer.parts.items()}
        whole = partial(form.whole, callees, self._spelling, several=several)
        if plan.use is not ToolUse.AUTO:
            return Constraint(grammar=self._grammars.composed(whole(answer=None), parts, plan.path))
        if answer is not None:
            self._check_beside(answer)
            parts = {**parts, "answer": answer.grammar.rules}
            root = whole(answer="answer")
            return Constraint(grammar=self._grammars.composed(root, parts, answer.field))
        if form.marker:
            root = form.behind_marker(callees, self._spelling, several=several)
            grammar = self._grammars.composed(root, parts, plan.path)
            return Constraint(grammar=grammar, triggers=(form.marker,))
        return Constraint(grammar=self._grammars.composed(whole(answer=""), parts, plan.path))

    def _check_beside(self, answer: AnswerForm) -> None:
        """Refuses an answer that might begin as a call does."""
        if not (answer.grammar.is_json or self._form.announces(self._spelling)):
            message = (
                "An answer of a given form that is not JSON cannot be combined with tools that the model may "
                f"or may not call (tool format '{self._form.name}'); set 'tool_choice' to 'none' or "
                "'required'."
            )
            raise InvalidRequest(message, param=answer.field, code="unsupported_parameter")

    def _offer(self, index: int, function: AskedFunction) -> _Offer:
        schema = _NO_PARAMETERS if function.parameters is None else function.parameters
        if schema.get("type", "object") != "object":
            message = f"Invalid schema for function '{function.name}': its type must be 'object'."
            raise InvalidRequest(
                message, param=f"{function.schema_path}.type", code="invalid_function_parameters"
            )
        rule, typed = f"f{index}", {**schema, "type": "object"}
        if self._form.splits_parameters:
            split = SplitParameters(function, typed, self._grammars, rule)
            callee = Callee(function.name, rule, split.parameters)
            return _Offer(callee, split.parts, split.unenforced, split.share)
        grammar = self._grammars.of_schema(typed, function.schema_path, strict=function.is_strict)
        return _Offer(Callee(function.name, rule), {rule: grammar.rules}, grammar.unenforced, grammar.share)


class _Offer(msgspec.Struct, frozen=True):
    """A function as the grammar has it, with the grammars of what it names."""

    callee: Callee
    parts: dict[str, bytes]
    unenforced: tuple[str, ...]
    share: float
    """What its grammars cost, as a share of what one schema may cost."""


def _control_token(tokenizer: Tokenizer, name: str) -> int | None:
    """The number of the control token of this name; None: the name is plain text for this model."""
    tokens = tokenizer.encode(name, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not tokenizer.piece(tokens[0]) else None


def _reason(plan: ToolPlan) -> str:
    """OpenAI's finish reason. The end of a tool call that was demanded by name is a stop."""
    if plan.use is ToolUse.NAMED:
        return "stop"
    return "function_call" if plan.is_legacy else "tool_calls"
