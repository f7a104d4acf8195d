"""What the output must look like: the answer's grammar, that of tool calls, or both in one constraint."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.calls.call import CallThinking, ToolCallStyle
from openai_cpu_server.api.resolve.tools import OfferedFunction, ToolPlan, ToolUse
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.structured import JsonObject
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.grammars import Grammar, Grammars
from openai_cpu_server.prompt.tool_formats import ToolFormat
from openai_cpu_server.structured import Whitespace

_NO_PARAMETERS: JsonObject = {"type": "object", "additionalProperties": False}
_BLANKS = {Whitespace.COMPACT: " ", Whitespace.FLEXIBLE: r" [ \t\n\r]{0,40} "}


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


def of_answer(answer: Grammar | None) -> Output:
    if answer is None:
        return Output()
    return Output(Constraint(grammar=answer.gbnf), answer.unenforced)


def check_ends(body: GenerationBody, output: Output) -> None:
    """Refuses what would cut the output, or not let it end, against its grammar."""
    if output.constraint is None or output.constraint.grammar is None:
        return
    if body.ignore_eos:
        raise _no_company("ignore_eos", "the output ends where its grammar ends")
    if body.stop and not output.is_free:
        raise _no_company("stop", "it could cut the output short")


def _no_company(param: str, why: str) -> InvalidRequest:
    message = f"'{param}' cannot be combined with structured output or tools: {why}."
    return InvalidRequest(message, param=param, code="invalid_value")


class ToolOutputs:
    """Makes constraints of tool calls in one model's format."""

    def __init__(self, form: ToolFormat, grammars: Grammars, tokenizer: Tokenizer) -> None:
        self._form = form
        self._grammars = grammars
        self._tokenizer = tokenizer

    def of_plan(self, plan: ToolPlan, answer: Grammar | None) -> Output:
        """`answer`: what text must look like, where there is text. Raises InvalidRequest."""
        param = "functions" if plan.is_legacy else "tools"
        arguments = [self._arguments(function) for function in plan.callable]
        parts = {f"f{index}": grammar.gbnf for index, grammar in enumerate(arguments)}
        unenforced = tuple(path for grammar in arguments for path in grammar.unenforced)
        constraint = self._constraint(plan, parts, answer, param)
        if answer is not None and plan.use is ToolUse.AUTO:
            unenforced = answer.unenforced + unenforced
        is_auto = plan.use is ToolUse.AUTO
        at_start = is_auto and answer is not None
        style = ToolCallStyle(self._form, _reason(plan), plan.is_legacy, at_start=at_start)
        return Output(constraint, unenforced, style, is_free=is_auto and answer is None)

    def _constraint(
        self, plan: ToolPlan, parts: dict[str, str], answer: Grammar | None, param: str
    ) -> Constraint:
        tool_calls, rules = self._form.calls(several=plan.several), self._call_rules(plan)
        if plan.use is not ToolUse.AUTO:
            grammar = self._grammars.composed(f"{tool_calls}\n{rules}", parts, param)
            return Constraint(grammar=grammar, opening=self._opening())
        if answer is not None:
            return self._beside(answer, tool_calls, rules, parts)
        if self._form.marker:
            grammar = self._grammars.composed(f"{tool_calls}\n{rules}", parts, param)
            return Constraint(grammar=grammar, triggers=(self._form.marker,))
        # The first character decides; nothing at all is an answer, too.
        root = f"({tool_calls} | text)?\ntext ::= [^{{] [^\\x00]*\n{rules}"
        return Constraint(grammar=self._grammars.composed(root, parts, param))

    def _opening(self) -> tuple[int, ...]:
        """The marker that a demanded tool call begins with, as tokens."""
        marker = self._form.marker
        return tuple(self._tokenizer.encode(marker, add_special=False, parse_special=True))

    def _beside(self, answer: Grammar, tool_calls: str, rules: str, parts: dict[str, str]) -> Constraint:
        """An answer of its own form, or tool calls: one grammar, if it can tell them apart by text."""
        form = self._form
        if not (form.marker and form.marker_is_text and answer.is_json):
            message = (
                "An answer of a given form cannot be combined with tools that the model may or may not call"
                f" (tool format '{form.name}'); set 'tool_choice' to 'none' or 'required'."
            )
            raise InvalidRequest(message, param="response_format", code="unsupported_parameter")
        root = f'answer | "{form.marker}" {tool_calls}\n{rules}'
        grammar = self._grammars.composed(root, {**parts, "answer": answer.gbnf}, "response_format")
        return Constraint(grammar=grammar)

    def _call_rules(self, plan: ToolPlan) -> str:
        """The rule `call`: an object with the name of a function and its arguments."""
        names = [f"call-{index}" for index in range(len(plan.callable))]
        rules = [f"call ::= {' | '.join(names)}"]
        rules += [self._call_rule(index, function.name) for index, function in enumerate(plan.callable)]
        rules.append(f'call-end ::={_BLANKS[self._grammars.whitespace]}"}}"')
        return "\n".join(rules) + "\n"

    def _call_rule(self, index: int, name: str) -> str:
        marks = ("{", '"name"', ":", f'"{name}"', ",", f'"{self._form.arguments_key}"', ":")
        blank = _BLANKS[self._grammars.whitespace]
        head = "".join(_literal(mark) + blank for mark in marks)
        return f"call-{index} ::= head-{index} f{index} call-end\nhead-{index} ::= {head}"

    def _arguments(self, function: OfferedFunction) -> Grammar:
        schema = _NO_PARAMETERS if function.parameters is None else function.parameters
        if schema.get("type", "object") != "object":
            message = f"Invalid schema for function '{function.name}': its type must be 'object'."
            raise InvalidRequest(message, param=f"{function.param}.type", code="invalid_function_parameters")
        typed: JsonObject = {**schema, "type": "object"}
        return self._grammars.of_schema(typed, function.param, strict=function.is_strict)


def _reason(plan: ToolPlan) -> str:
    """OpenAI's finish reason. The end of a tool call that was demanded by name is a stop."""
    if plan.use is ToolUse.NAMED:
        return "stop"
    return "function_call" if plan.is_legacy else "tool_calls"


def _literal(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
