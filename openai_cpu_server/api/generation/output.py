"""Constraint of the output from tools, the answer's form, or both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from openai_cpu_server.api.generation.call import CallThinking, ToolCallStyle
from openai_cpu_server.api.generation.params import (
    FormParam,
    FunctionParam,
    GenerationParams,
    JsonObject,
    TextParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.contract.grammar import GrammarSource
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.errors import InvalidRequest, wrong
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars
from openai_cpu_server.prompt.tool_formats import INPUT, Callee, Parameter, Spelling, ToolFormat
from openai_cpu_server.prompt.tool_formats.reader import OBJECT_HEAD, OBJECT_TAIL


class ToolPlan(msgspec.Struct, frozen=True):
    shown: Sequence[Mapping[str, object]]
    callable: tuple[FunctionParam, ...]
    use: ToolUse | None
    """Tools are only shown if None."""
    several: bool
    path: str
    is_legacy: bool


def tool_plan(asked: ToolsParam | None) -> ToolPlan | None:
    """Return None if no tool may be called or shown. Raises InvalidRequest."""
    if asked is None:
        return None
    _check_names(asked.functions)
    chosen = asked.chosen
    if chosen is not None:
        _check_known(chosen, {function.name for function in asked.functions}, asked.choice_path)
    if asked.use is None and not asked.is_shown:
        return None
    return ToolPlan(
        shown=[_shown(function) for function in asked.functions],
        callable=tuple(each for each in asked.functions if chosen is None or each.name in chosen),
        use=asked.use,
        several=asked.several and asked.use is not ToolUse.NAMED,
        path=asked.path,
        is_legacy=asked.is_legacy,
    )


def check_no_choice(choice: object, *, without: str, path: str) -> None:
    """Reject a choice between functions without functions. Raises InvalidRequest."""
    if choice not in (None, "none", "auto"):
        raise wrong(f"'{path}' is only allowed together with '{without}'.", path)


def _shown(function: FunctionParam) -> dict[str, object]:
    described = {"name": function.name, "description": function.description or ""}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**described, "parameters": parameters}}


def _check_names(functions: Sequence[FunctionParam]) -> None:
    seen: set[str] = set()
    for function in functions:
        if function.name in seen:
            message = f"There are several functions of the name '{function.name}'."
            raise wrong(message, f"{function.path}.name")
        seen.add(function.name)


def _check_known(names: Sequence[str], known: Collection[str], path: str) -> None:
    for name in names:
        if name not in known:
            raise wrong(f"'{path}' names '{name[:64]}', which is none of the functions given.", path)


_NOTES = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"}
_NAMING = {"$defs", "definitions", "$anchor", "$dynamicAnchor"}
_SPLIT = {*_NOTES, *_NAMING, "type", "properties", "required", "additionalProperties"}
"""Keywords of an object's schema that keep their meaning if properties are handled one by one."""
_TEXT = {*_NOTES, "type", "enum", "const"}
"""Keywords of a string's schema that leave it raw."""
_MOST_CHOICES = 200
_WAYS = {"$ref", "allOf", "anyOf", "oneOf"}


class SplitParameters:
    """Grammars of one function's parameters. Additional ones are never written."""

    def __init__(
        self,
        function: FunctionParam,
        schema: JsonObject,
        grammars: ModelGrammars,
        stem: str,
        can_name: Callable[[str], bool],
    ) -> None:
        self._can_name = can_name
        self._function = function
        self._grammars = grammars
        self._schema = schema
        self.parts: dict[str, bytes] = {}
        self.unenforced: tuple[str, ...] = self._left_out(schema)
        self.share = 0.0
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise self._invalid("properties", "an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._invalid("required", "a list of names")
        needed = [str(name) for name in required]
        names = [name for name in dict.fromkeys([*properties, *needed]) if self._is_written(name, needed)]
        self.parameters = tuple(
            self._parameter(name, properties.get(name, {}), f"{stem}p{index}", is_required=name in needed)
            for index, name in enumerate(names)
        )

    def _invalid(self, keyword: str, expected: str) -> InvalidRequest:
        message = f"Invalid schema for function '{self._function.name}': '{keyword}' must be {expected}."
        return InvalidRequest(message, param=f"{self._function.schema_path}.{keyword}", code="invalid_schema")

    def _left_out(self, schema: JsonObject) -> tuple[str, ...]:
        others = sorted(schema.keys() - _SPLIT)
        is_lost = bool(_WAYS & schema.keys()) and not schema.get("properties")
        if others and (self._function.is_strict or is_lost):
            message = f"'{others[0]}' cannot be enforced: this model writes each parameter by itself."
            path = f"{self._function.schema_path}.{others[0]}"
            raise InvalidRequest(message, param=path, code="unsupported_schema")
        return tuple(f"{self._function.schema_path}.{each}" for each in others)

    def _is_written(self, name: str, required: list[str]) -> bool:
        if self._can_name(name):
            return True
        if name in required:
            message = f"A parameter of the name '{name[:64]}' cannot be written in this model's format."
            path = f"{self._function.schema_path}.required"
            raise InvalidRequest(message, param=path, code="invalid_function_parameters")
        return False

    def _parameter(self, name: str, schema: object, rule: str, *, is_required: bool) -> Parameter:
        choices = _choices(schema)
        self.parts[rule] = self._value(name).rules
        return Parameter(
            name,
            is_required=is_required,
            rule=rule,
            is_text=choices is not None,
            choices=choices or (),
            is_boolean=isinstance(schema, dict)
            and schema.keys() - _NOTES == {"type"}
            and schema["type"] == "boolean",
        )

    def _value(self, name: str) -> CheckedGrammar:
        """Compile the parameter as a place in the whole schema, so that its references resolve."""
        properties = self._schema.get("properties", {})
        is_described = isinstance(properties, dict) and name in properties
        grammar = self._grammars.of_schema(
            self._schema if is_described else {},
            self._function.schema_path,
            strict=self._function.is_strict,
            pointer="/properties/" + name.replace("~", "~0").replace("/", "~1") if is_described else "",
        )
        self.unenforced += grammar.unenforced
        self.share += grammar.share
        return grammar


def _choices(schema: object) -> tuple[str, ...] | None:
    """Return the strings that the schema allows, () for any string, or None for another schema."""
    if not isinstance(schema, dict) or schema.get("type") != "string" or schema.keys() - _TEXT:
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not isinstance(listed, list) or {"const", "enum"} <= schema.keys():
        return None
    texts = tuple(value for value in listed if isinstance(value, str))
    is_plain = len(texts) == len(listed) <= _MOST_CHOICES and "" not in texts
    return texts if is_plain and ("enum" not in schema or texts) else None


_MOST_SHARES = 3.0
"""Limit of all schemas, in limits of one: two or three seconds. 128 functions with four `format`s each
cost 2.2."""
_MOST_SETS = 512
"""Parameters come in any order up to this number of sets of written ones, over all functions."""
_NO_PARAMETERS: JsonObject = {"type": "object", "additionalProperties": False}
_BLANKS = r"[ \t\n\r]{0,40}"


class PlannedOutput(msgspec.Struct, frozen=True):
    constraint: Constraint | None = None
    unenforced: tuple[str, ...] = ()
    tool_calls: ToolCallStyle | None = None
    is_free: bool = False
    """True if text outside of tool calls is free, so that a stop string cannot break it."""
    thinking: CallThinking | None = None
    shows_marks: bool = False
    """True if marks of reasoning are control tokens."""


class AnswerForm(msgspec.Struct, frozen=True):
    grammar: CheckedGrammar
    field: str

    @classmethod
    def of(cls, asked: FormParam | None, grammars: ModelGrammars) -> AnswerForm | None:
        """Compile the grammar. Raises InvalidRequest."""
        return None if asked is None else cls(asked.make(grammars, asked.path), asked.field)


def of_answer(answer: AnswerForm | None) -> PlannedOutput:
    if answer is None:
        return PlannedOutput()
    return PlannedOutput(Constraint(grammar=answer.grammar.lark), answer.grammar.unenforced)


def check_ends(ask: GenerationParams, output: PlannedOutput) -> None:
    """Reject options that cut the output, or prevent its end. Raises InvalidRequest."""
    if output.constraint is None or output.constraint.grammar is None:
        return
    if ask.sampling.ignore_eos:
        raise _no_company("ignore_eos", "the output ends where its grammar ends")
    if ask.stop and not output.is_free:
        raise _no_company(ask.stop_path, "it could cut the output short")


def _no_company(path: str, why: str) -> InvalidRequest:
    return wrong(f"'{path}' cannot be combined with structured output or tools: {why}.", path)


class ToolOutputs:
    def __init__(self, form: ToolFormat, grammars: ModelGrammars, tokenizer: Tokenizer) -> None:
        self._form = form
        self._grammars = grammars
        blanks = _BLANKS if grammars.is_flexible else ""
        self._spelling = Spelling(blanks, partial(_control_token, tokenizer))

    def of_plan(self, plan: ToolPlan, answer: AnswerForm | None) -> PlannedOutput:
        """`answer`: form of text, where there is text. Raises InvalidRequest."""
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
            custom=frozenset(each.name for each in plan.callable if each.text is not None),
        )
        return PlannedOutput(constraint, unenforced, style, is_free=is_auto and answer is None)

    def _offers(self, plan: ToolPlan, spent: float) -> list[_OfferedFunction]:
        offers: list[_OfferedFunction] = []
        for index, function in enumerate(plan.callable):
            offers.append(self._offer(index, function, _MOST_SETS // max(8, len(plan.callable))))
            spent += offers[-1].share
            if spent > _MOST_SHARES:
                message = (
                    "The schemas of this call are too large together: all may cost three times what one may; "
                    "use fewer tools, or simpler patterns."
                )
                raise wrong(message, function.schema_path)
        return offers

    def _constraint(
        self, plan: ToolPlan, offers: Sequence[_OfferedFunction], answer: AnswerForm | None
    ) -> Constraint:
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
        if not (answer.grammar.is_json or self._form.announces(self._spelling)):
            message = (
                "An answer of a given form that is not JSON cannot be combined with tools that the model may "
                f"or may not call (tool format '{self._form.name}'); set 'tool_choice' to 'none' or "
                "'required'."
            )
            raise InvalidRequest(message, param=answer.field, code="unsupported_parameter")

    def _offer(self, index: int, function: FunctionParam, most_sets: int) -> _OfferedFunction:
        if function.text is not None and function.text.source is not None:
            return self._text_offer(f"f{index}", function, function.text, function.text.source)
        schema = _NO_PARAMETERS if function.parameters is None else function.parameters
        if schema.get("type", "object") != "object":
            message = f"Invalid schema for function '{function.name}': its type must be 'object'."
            raise InvalidRequest(
                message, param=f"{function.schema_path}.type", code="invalid_function_parameters"
            )
        rule, typed = f"f{index}", {**schema, "type": "object"}
        if self._form.splits_parameters:
            split = SplitParameters(function, typed, self._grammars, rule, self._form.names_parameter)
            is_free = not function.is_strict and 1 << len(split.parameters) <= most_sets
            callee = Callee(function.name, rule, split.parameters, in_any_order=is_free)
            return _OfferedFunction(callee, split.parts, split.unenforced, split.share)
        grammar = self._grammars.of_schema(typed, function.schema_path, strict=function.is_strict)
        return _OfferedFunction(
            Callee(function.name, rule), {rule: grammar.rules}, grammar.unenforced, grammar.share
        )

    def _text_offer(
        self, rule: str, function: FunctionParam, text: TextParam, source: GrammarSource
    ) -> _OfferedFunction:
        form = self._form
        grammar = self._grammars.of_tool_text(source, text.definition, text.path, text_end=form.text_end)
        head, tail = self._spelling.gbnf(OBJECT_HEAD), self._spelling.gbnf(OBJECT_TAIL)
        parameter = Parameter(
            INPUT, is_required=True, rule=rule, is_text=grammar.is_raw, is_ruled=grammar.is_raw
        )
        callee = Callee(function.name, f"({head} {rule} {tail})", (parameter,))
        return _OfferedFunction(callee, {rule: grammar.rules}, (), grammar.share)


class _OfferedFunction(msgspec.Struct, frozen=True):
    callee: Callee
    parts: dict[str, bytes]
    unenforced: tuple[str, ...]
    share: float


def _control_token(tokenizer: Tokenizer, name: str) -> int | None:
    tokens = tokenizer.encode(name, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not tokenizer.piece(tokens[0]) else None


def _reason(plan: ToolPlan) -> str:
    """Return `stop` for a call that was demanded by name, as OpenAI does."""
    if plan.use is ToolUse.NAMED:
        return "stop"
    return "function_call" if plan.is_legacy else "tool_calls"
