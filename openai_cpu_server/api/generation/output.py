from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from openai_cpu_server.api.generation.call import CallThinking, ToolCallStyle
from openai_cpu_server.api.generation.params import (
    CustomGrammar,
    FormParam,
    FunctionParam,
    GenerationParams,
    JsonObject,
    ReasoningParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.contract.request import Constraint, Thinking
from openai_cpu_server.errors import InvalidRequest, wrong
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars, param_at
from openai_cpu_server.models.served import ModelThinking
from openai_cpu_server.prompt.chat_prompts import ChatPrompt
from openai_cpu_server.prompt.reasoning import ReasoningFormat, ThinkingStage, switch
from openai_cpu_server.prompt.tool_formats import INPUT, Callee, Parameter, Spelling, ToolFormat
from openai_cpu_server.prompt.tool_formats.reader import OBJECT_HEAD, OBJECT_TAIL


def usable_tools(tools: ToolsParam | None) -> ToolsParam | None:
    """Return None if no tool may be called or shown. Raises InvalidRequest."""
    if tools is None:
        return None
    names: set[str] = set()
    for function in tools.functions:
        if function.name in names:
            message = f"Several functions have the name '{function.name}'."
            raise wrong(message, f"{function.path}.name")
        names.add(function.name)
    path = tools.choice_path
    for name in tools.chosen or ():
        if name not in names:
            raise wrong(f"'{path}' names '{name[:64]}', which is not among the functions.", path)
    return None if tools.use is None and not tools.is_shown else tools


def check_no_choice(choice: object, *, without: str, path: str) -> None:
    """Reject a choice between functions without functions. Raises InvalidRequest."""
    if choice not in (None, "none", "auto"):
        raise wrong(f"'{path}' is only allowed together with '{without}'.", path)


_NOTES = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"}
_NAMING = {"$defs", "definitions", "$anchor", "$dynamicAnchor"}
_SPLIT = {*_NOTES, *_NAMING, "type", "properties", "required", "additionalProperties", "$ref", "allOf"}
"""Keywords of an object's schema that hold if properties are handled one by one."""
_TEXT = {*_NOTES, "type", "enum", "const"}
"""Keywords of a string's schema that leave it raw."""
_SCALARS = ("null", "boolean", "number", "integer")
_MOST_REFERENCES = 8
_MOST_CHOICES = 200
_WAYS = ("anyOf", "oneOf", "then", "else")
"""Keywords whose schemas may or may not hold."""
_MOST_JOINED = 64


@dataclass
class JoinedSchema:
    """Properties of a schema and of those that its root refers to, by JSON pointer."""

    function: FunctionParam
    root: JsonObject

    def __post_init__(self) -> None:
        self.path = self.function.schema_path
        self.properties: dict[str, str] = {}
        self.required: dict[str, None] = {}
        self.unenforced: dict[str, None] = {}
        """Paths of keywords, in order."""
        self._seen: set[str] = set()
        self._join(self.root, "", is_certain=True)

    def _join(self, schema: object, pointer: str, *, is_certain: bool) -> None:
        if not isinstance(schema, dict) or pointer in self._seen or len(self._seen) == _MOST_JOINED:
            return
        self._seen.add(pointer)
        path = param_at(self.path, pointer)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise self._invalid(path, "properties", "an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._invalid(path, "required", "a list of names")
        self.unenforced |= dict.fromkeys(f"{path}.{each}" for each in sorted(schema.keys() - _SPLIT))
        reference = schema.get("$ref")
        target = urllib.parse.unquote(str(reference)).removeprefix("#")
        referred = self.at(target) if str(reference).startswith("#") else None
        if reference is not None and not isinstance(referred, dict):
            self.unenforced[f"{path}.$ref"] = None
        for name in properties:
            at = f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1')}"
            if self.properties.setdefault(name, at) != at:
                self.unenforced[f"{path}.properties.{name}"] = None
        if is_certain:
            self.required |= dict.fromkeys(map(str, required))
        self._join(referred, target, is_certain=is_certain)
        for keyword in ("allOf", *_WAYS):
            ways = schema.get(keyword)
            for index, each in enumerate(ways if isinstance(ways, list) else ()):
                self._join(each, f"{pointer}/{keyword}/{index}", is_certain=is_certain and keyword == "allOf")
            self._join(ways, f"{pointer}/{keyword}", is_certain=False)

    def at(self, pointer: str) -> object:
        found: object = self.root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
            else:
                found = found.get(key) if isinstance(found, dict) else None
        return found

    def _invalid(self, path: str, keyword: str, expected: str) -> InvalidRequest:
        message = f"Invalid schema for function '{self.function.name}': '{keyword}' must be {expected}."
        return InvalidRequest(message, param=f"{path}.{keyword}", code="invalid_schema")


class _Text(msgspec.Struct, frozen=True):
    """Some strings, and all values of other types."""

    choices: tuple[str, ...] = ()
    """Empty for any string."""
    others: frozenset[str] = frozenset()


def _text_of(schema: object, joined: JoinedSchema, depth: int = 0) -> _Text | None:
    """Return None if the schema is not a text, or a choice looks like another scalar."""
    if not isinstance(schema, dict) or depth > _MOST_REFERENCES:
        return None
    keywords = schema.keys() - _NOTES
    reference = str(schema.get("$ref"))
    if keywords == {"$ref"} and reference.startswith("#") and "$id" not in schema:
        return _text_of(joined.at(urllib.parse.unquote(reference)[1:]), joined, depth + 1)
    if keywords in ({"anyOf"}, {"oneOf"}):
        ways = schema.get("anyOf", schema.get("oneOf"))
        found = _joined_text(ways, joined, depth) if isinstance(ways, list) else None
    else:
        found = _own_text(schema) if keywords <= _TEXT else None
    return None if found is None or (found.choices and found.others - {"null", "boolean"}) else found


def _joined_text(ways: list[object], joined: JoinedSchema, depth: int) -> _Text | None:
    texts = [text for each in ways if (text := _text_of(each, joined, depth + 1)) is not None]
    bare = [each for each in ways if isinstance(each, dict) and each.keys() - _NOTES == {"type"}]
    others = [each["type"] for each in bare if each["type"] in _SCALARS]
    if len(texts) != 1 or len(others) + 1 != len(ways):
        return None
    found = [*others, *texts[0].others]
    is_exclusive = len(set(found)) == len(found) and not {"number", "integer"} <= set(found)
    return _Text(texts[0].choices, frozenset(found)) if is_exclusive else None


def _own_text(schema: JsonObject) -> _Text | None:
    named = schema.get("type")
    types = set(map(str, named)) if isinstance(named, list) else {str(named)}
    others = types - {"string"}
    if "string" not in types or others.difference(_SCALARS) or {"const", "enum"} <= schema.keys():
        return None
    if schema.keys().isdisjoint({"const", "enum"}):
        return _Text(others=frozenset(others))
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(listed, list) or others - {"null"}:
        return None
    choices = tuple(value for value in listed if isinstance(value, str))
    has_null = None in listed and "null" in others
    is_plain = 0 < len(choices) == len(listed) - has_null <= _MOST_CHOICES and "" not in choices
    return _Text(choices, frozenset({"null"} if has_null else ())) if is_plain else None


MOST_SHARES = 3.0
"""Limit of all schemas, in limits of one: two or three seconds."""
_MOST_SETS = 512
"""Parameters come in any order up to this number of sets of written ones."""
_NO_PARAMETERS: JsonObject = {"type": "object", "additionalProperties": False}
_BLANKS = r"[ \t\n\r]{0,40}"


class PlannedOutput(msgspec.Struct, frozen=True):
    constraint: Constraint | None = None
    path: str | None = None
    """Source of the grammar."""
    unenforced: tuple[str, ...] = ()
    tool_calls: ToolCallStyle | None = None
    takes_stop: bool = True
    """False if a stop string could cut JSON or a demanded call."""
    thinking: CallThinking | None = None
    shows_marks: bool = False
    """True if reasoning's marks are control tokens."""
    ignored: tuple[str, ...] = ()
    """Paths without meaning for the model."""


def answer_output(form: FormParam | None, grammars: ModelGrammars) -> PlannedOutput:
    """Compile the answer's grammar. Raises InvalidRequest."""
    if form is None:
        return PlannedOutput()
    grammar = form.make(grammars)
    constraint = Constraint(grammar=grammar.lark)
    return PlannedOutput(constraint, form.path, grammar.unenforced, takes_stop=not grammar.is_json)


def check_ends(params: GenerationParams, output: PlannedOutput) -> None:
    """Reject an option that prevents the output's end. Raises InvalidRequest."""
    has_grammar = output.constraint is not None and output.constraint.grammar is not None
    if has_grammar and params.sampling.values.ignore_eos:
        why = "the output ends where its grammar ends"
        message = f"'ignore_eos' cannot be combined with structured output or tools: {why}."
        raise wrong(message, "ignore_eos")


class ToolOutputs:
    def __init__(self, form: ToolFormat, grammars: ModelGrammars, tokenizer: Tokenizer) -> None:
        self._form = form
        self._grammars = grammars
        blanks = _BLANKS if grammars.is_flexible else ""
        self._spelling = Spelling(blanks, partial(_control_token, tokenizer))

    def plan(self, tools: ToolsParam, use: ToolUse, form: FormParam | None) -> PlannedOutput:
        """`form`: of text, where there is text. Raises InvalidRequest."""
        answer = None if form is None else form.make(self._grammars)
        offers = self._offers(tools, 0.0 if answer is None else answer.share)
        parts = {rule: part for offer in offers for rule, part in offer.parts.items()}
        unenforced = tuple(path for offer in offers for path in offer.unenforced)
        callees = [offer.callee for offer in offers]
        several = tools.several and use is not ToolUse.NAMED
        whole = partial(self._form.whole, callees, self._spelling, several=several)
        field, triggers, takes_stop = tools.path, tuple[str, ...](), False
        if use is not ToolUse.AUTO:
            root = whole(answer=None)
        elif answer is not None and form is not None:
            self._check_beside(answer, form.field)
            root, field = whole(answer="answer"), form.field
            parts = {**parts, "answer": answer.rules}
            unenforced = answer.unenforced + unenforced
        elif marker := self._form.marker:
            root = self._form.behind_marker(callees, self._spelling, several=several)
            triggers, takes_stop = (marker,), True
        else:
            root, takes_stop = whole(answer=""), True
        grammar = self._grammars.composed(root, parts, field)
        # A call that was demanded by name ends with `stop`, as at OpenAI.
        reason = "stop" if use is ToolUse.NAMED else "function_call" if tools.is_legacy else "tool_calls"
        style = ToolCallStyle(
            self._form,
            reason,
            tools.is_legacy,
            at_start=use is ToolUse.AUTO and answer is not None,
            functions={callee.name: self._form.raw_parameters(callee) for callee in callees},
            schemas={x.name: x.parameters for x in tools.callable if x.parameters is not None},
            custom=frozenset(each.name for each in tools.callable if each.is_custom),
        )
        constraint = Constraint(grammar=grammar, triggers=triggers)
        return PlannedOutput(constraint, field, unenforced, style, takes_stop=takes_stop)

    def _offers(self, tools: ToolsParam, spent: float) -> list[_OfferedFunction]:
        offers: list[_OfferedFunction] = []
        functions = tools.callable
        for index, function in enumerate(functions):
            offers.append(self._offer(index, function, _MOST_SETS // max(8, len(functions))))
            spent += offers[-1].share
            if spent > MOST_SHARES:
                message = (
                    "The schemas of this call are too large together: their limit is three times that "
                    "of one schema; use fewer tools, or simpler patterns."
                )
                raise wrong(message, function.schema_path)
        return offers

    def _check_beside(self, answer: CheckedGrammar, field: str) -> None:
        if not (answer.is_json or self._form.announces(self._spelling)):
            message = (
                "A structured answer other than JSON cannot be combined with 'tool_choice' 'auto' in the "
                f"tool format '{self._form.name}'; set 'tool_choice' to 'none' or 'required'."
            )
            raise InvalidRequest(message, param=field, code="unsupported_parameter")

    def _offer(self, index: int, function: FunctionParam, most_sets: int) -> _OfferedFunction:
        if function.grammar is not None:
            return self._custom_offer(f"f{index}", function.name, function.grammar)
        schema = _NO_PARAMETERS if function.parameters is None else function.parameters
        if schema.get("type", "object") != "object":
            message = f"Invalid schema for function '{function.name}': its type must be 'object'."
            raise InvalidRequest(
                message, param=f"{function.schema_path}.type", code="invalid_function_parameters"
            )
        rule, typed = f"f{index}", {**schema, "type": "object"}
        if self._form.splits_parameters:
            return self._split_offer(rule, function, typed, most_sets)
        grammar = self._grammars.of_schema(typed, function.schema_path, strict=function.is_strict)
        return _OfferedFunction(
            Callee(function.name, rule), {rule: grammar.rules}, grammar.unenforced, grammar.share
        )

    def _split_offer(
        self, rule: str, function: FunctionParam, schema: JsonObject, most_sets: int
    ) -> _OfferedFunction:
        """Write each parameter by its own grammar, never additional ones."""
        joined = JoinedSchema(function, schema)
        parameters, parts, share = list[Parameter](), dict[str, bytes](), 0.0
        unenforced = tuple(joined.unenforced)
        if unenforced and function.is_strict:
            keyword = unenforced[0].rpartition(".")[2]
            message = (
                f"'{keyword}' cannot be enforced, because this model's format "
                "writes each parameter separately."
            )
            raise InvalidRequest(message, param=unenforced[0], code="unsupported_schema")
        for name in self._written_names(joined):
            # A place in the whole schema is compiled, so that its references resolve.
            pointer, part = joined.properties.get(name, ""), f"{rule}p{len(parameters)}"
            grammar = self._grammars.of_schema(
                schema if pointer else {},
                joined.path,
                strict=function.is_strict,
                pointer=pointer,
                values=self._form.value_spelling(self._spelling),
            )
            text = _text_of(joined.at(pointer) if pointer else {}, joined)
            found, is_required = text or _Text(), name in joined.required
            written = Parameter(name, is_required, part, text is not None, found.choices, found.others)
            parameters.append(written)
            parts[part] = grammar.rules
            unenforced += grammar.unenforced
            share += grammar.share
        is_free = not function.is_strict and 1 << len(parameters) <= most_sets
        callee = Callee(function.name, rule, tuple(parameters), in_any_order=is_free)
        return _OfferedFunction(callee, parts, unenforced, share)

    def _written_names(self, joined: JoinedSchema) -> list[str]:
        names = [*{**joined.properties, **joined.required}]
        for name in names:
            if name in joined.required and not self._form.names_parameter(name):
                message = f"A parameter named '{name[:64]}' cannot be written in this model's format."
                path = f"{joined.path}.required"
                raise InvalidRequest(message, param=path, code="invalid_function_parameters")
        return [name for name in names if self._form.names_parameter(name)]

    def _custom_offer(self, rule: str, name: str, custom: CustomGrammar) -> _OfferedFunction:
        grammar = self._grammars.of_tool_text(
            custom.syntax, custom.definition, custom.path, text_end=self._form.text_end
        )
        head, tail = self._spelling.gbnf(OBJECT_HEAD), self._spelling.gbnf(OBJECT_TAIL)
        parameter = Parameter(
            INPUT, is_required=True, rule=rule, is_text=grammar.is_raw, is_ruled=grammar.is_raw
        )
        callee = Callee(name, f"({head} {rule} {tail})", (parameter,))
        return _OfferedFunction(callee, {rule: grammar.rules}, (), grammar.share)


class _OfferedFunction(msgspec.Struct, frozen=True):
    callee: Callee
    parts: dict[str, bytes]
    unenforced: tuple[str, ...]
    share: float


def _control_token(tokenizer: Tokenizer, name: str) -> int | None:
    tokens = tokenizer.encode(name, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not tokenizer.piece(tokens[0]) else None


# -- reasoning ---------------------------------------------------------------------------------------------

EFFORT_BUDGETS = {"minimal": 256, "low": 1024, "medium": 4096}
"""Reasoning tokens for templates that ignore the effort. `low` is LiteLLM's number."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_CLOSING_WORDS = "\n\nI have thought long enough and give my answer now.\n"
"""Many models continue reasoning in the answer without it."""


class ThinkingPlan(msgspec.Struct, frozen=True):
    variables: Mapping[str, object]
    is_on: bool | None = None
    """Template's choice if None."""
    skips_thinking: bool = False
    """True if the prompt must close the reasoning."""
    budget: int | None = None
    is_hidden: bool = False


def thinking_plan(param: ReasoningParam, model: ModelThinking | None) -> ThinkingPlan:
    """`model`: None if it does not reason, though variables reach its template."""
    is_on = param.is_on if param.is_on is not None or model is None else model.is_on
    budget = None if model is None else _budget(param, model)
    if budget == 0:
        is_on = False
    levels = () if model is None else model.form.levels
    variables = {} if is_on is None else switch(is_on, levels)
    effort = param.effort if model is None or is_on is not False else "none"
    if effort is not None:
        if levels and effort == "none":
            effort = levels[0]
        elif model is not None:
            effort = _nearest(effort, model.form.efforts or levels[1:])
        variables["reasoning_effort"] = effort
    if model is None:
        return ThinkingPlan({**variables, **param.variables})
    if budget is not None or is_on is False:
        variables["thinking_budget"] = budget if is_on is not False else 0  # Seed-OSS reads it
    return ThinkingPlan(
        variables={**variables, **param.variables},
        is_on=is_on,
        skips_thinking=is_on is False and not model.form.efforts,
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
        """Apply form and stop strings to the answer alone."""
        form, stage = self.form, prompt.stage
        if stage is ThinkingStage.BEHIND and not (form.answer_end or form.answer_alone):
            return output
        shown = CallThinking(form, stage, plan.is_hidden)
        marks = self._tokens(form.begin + form.end + form.answer_begin + form.answer_alone)
        are_silent = any(not self.tokenizer.piece(token) for token in marks)
        output = msgspec.structs.replace(output, thinking=shown, shows_marks=are_silent)
        if stage is ThinkingStage.BEHIND:
            return output
        constraint = output.constraint or Constraint()
        # Grammars of calls in channels contain the thoughts.
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
        closing = "" if plan.budget == 0 else _CLOSING_WORDS
        thinking = Thinking(
            begin="" if is_open else form.begin,
            end=form.end,
            opening=self._tokens(form.begin) if is_ruled and not is_open else (),
            shown_behind=form.answer_alone if form.has_channels else "",
            budget=plan.budget,
            closing=self._tokens(closing + form.end + behind),
        )
        before = self._tokens(form.gap + answer_begin) if is_ruled else ()
        return msgspec.structs.replace(constraint, thinking=thinking, opening=(*before, *constraint.opening))

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special=False, parse_special=True))
