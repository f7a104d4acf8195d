"""Compilation of each kind of source to a grammar that is ready to run."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from openai_cpu_server.contract.grammar import (
    BYTES_AND_END,
    GrammarAnswer,
    GrammarMaker,
    GrammarOrder,
    GrammarSource,
    MadeGrammar,
    Notation,
    RefusedGrammar,
)
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.gbnf.parser import names_tokens, parse_gbnf
from openai_cpu_server.structured.languages.automaton import PlainLanguages
from openai_cpu_server.structured.languages.charset import CharSet, of_bytes
from openai_cpu_server.structured.languages.expr import (
    NOTHING,
    Alt,
    Expr,
    GrammarRules,
    Ref,
    Text,
    alt,
    literal,
)
from openai_cpu_server.structured.languages.rewriting import MOST_RULES
from openai_cpu_server.structured.lark.meaning import lark_rules
from openai_cpu_server.structured.lark.reading import MOST_LARK_CHARACTERS
from openai_cpu_server.structured.lark.translation import Translation, numbered_from
from openai_cpu_server.structured.logic.goals import Conjunction, Goal, Goals
from openai_cpu_server.structured.options import (
    Additional,
    Budget,
    GrammarTooLarge,
    InvalidGrammar,
    InvalidSchema,
    Limits,
    Options,
    SchemaTooLarge,
    Unenforced,
    UnenforcedReport,
    UnsupportedSchema,
    Whitespace,
)
from openai_cpu_server.structured.scalars.numbers import INTEGER, NUMBER
from openai_cpu_server.structured.scalars.regex import full_language, rust_language
from openai_cpu_server.structured.schema.document import Json, ResourcePath
from openai_cpu_server.structured.schema.evaluation import Evaluation, without_unevaluated
from openai_cpu_server.structured.schema.nodes import JsonKind, Scalars, Size
from openai_cpu_server.structured.schema.normalise import SchemaReaders
from openai_cpu_server.structured.values.arrays import ArrayRules, array_shape
from openai_cpu_server.structured.values.objects import ObjectRules, ObjectShape, ObjectShapes
from openai_cpu_server.structured.values.scalars import (
    NumberLanguages,
    ScalarLexemes,
    StringLanguages,
    few_integers,
    spelled,
)
from openai_cpu_server.structured.writing.grammar import (
    GrammarBuilder,
    composed,
    packed_rules,
    pruned_rules,
    unpacked_rules,
    without_characters,
)
from openai_cpu_server.structured.writing.notations import quoted_texts, raw_texts, value_writing

_MOST_LISTED = 400


class CompiledGrammar(msgspec.Struct, frozen=True):
    rules: GrammarRules
    unenforced: tuple[Unenforced, ...] = ()
    """Left out because the options allow it; and formats that contradict other keywords."""
    share: float = 0.0
    is_raw: bool = False
    """True if texts are raw in a call, not JSON strings."""


def compile_schema(schema: Json, options: Options | None = None, pointer: str = "") -> CompiledGrammar:
    """Allow exactly the values of the schema, or of the one at a pointer into it.

    Raises UnsupportedSchema, InvalidSchema, SchemaTooLarge.
    """
    options = options or Options()
    try:
        try:
            found = _Compiler(schema, options, UnenforcedReport(options.strict)).compile(pointer)
            if not found.unenforced:
                return found
        except UnsupportedSchema as error:
            raise _precise_report(schema, options, pointer).error or error from None
        return replace(found, unenforced=_precise_report(schema, options, pointer).unenforced)
    except RecursionError:  # several limits nearly reached at once
        raise SchemaTooLarge("depth", options.limits.depth) from None


def _precise_report(schema: Json, options: Options, pointer: str) -> UnenforcedReport:
    """Compile again with equal schemas kept apart, because only then each has its own place."""
    report = UnenforcedReport(strict=False)
    compiler = _Compiler(schema, replace(options, limits=options.limits.enlarged), report, is_precise=True)
    try:
        compiler.compile_values(pointer)
    except InvalidRequest:
        if not options.strict:
            raise
    report.add_joined(compiler.joined)
    return report


class _Compiler:
    def __init__(
        self, schema: Json, options: Options, report: UnenforcedReport, *, is_precise: bool = False
    ) -> None:
        self._budget = budget = Budget(options.limits)
        self._report = report
        is_closed = options.additional is Additional.CLOSED
        self._readers = SchemaReaders(schema, budget, report, closes_objects=is_closed, is_precise=is_precise)
        self.joined = self._readers.table.joined
        self._normaliser = self._readers.root
        self._goals = goals = Goals(self._readers.table, self._readers.at, budget, report)
        goals.is_possible = self._is_possible
        self._evaluation = functools.cache(self._new_evaluation)
        goals.expand = functools.cache(functools.partial(without_unevaluated, self._evaluation, report))
        self._strings = StringLanguages(goals, budget, report)
        self._numbers = NumberLanguages(goals)
        self._shapes = ObjectShapes(goals, self._strings)
        self._grammar = grammar = GrammarBuilder(budget)
        marks, self._texts, names = value_writing(grammar, options.values, options.whitespace)
        self._number = functools.partial(grammar.by_language, plain=self._strings.plain)
        self._lexemes = ScalarLexemes(grammar, self._strings, self._texts)
        name_lexemes = ScalarLexemes(grammar, self._strings, names)
        self._objects = ObjectRules(grammar, marks, self._value, name_lexemes, options.order)
        self._arrays = ArrayRules(grammar, marks, self._value, self._listed, self._distinct, goals)
        self._is_json = options.values.notation is Notation.JSON
        self._is_compact = options.whitespace is Whitespace.COMPACT
        self._rules: dict[Goal, str] = {}
        self._waiting: list[tuple[Goal, str]] = []

    def _new_evaluation(self, kind: JsonKind, scope: ResourcePath) -> Evaluation:
        return Evaluation(
            kind,
            self._readers.of(scope),
            self._goals.may_meet,
            functools.partial(self._evaluation, kind),
            self._readers.draft,
            self._budget,
        )

    def compile_values(self, pointer: str) -> Expr:
        root = self._value(((self._normaliser.at(pointer), True),), "value")
        while self._waiting:
            goal, name = self._waiting.pop()
            with self._budget.looking_at(self._goals.path(goal)):
                self._grammar.set(name, self._of_goal(goal, name))
        return root

    def compile(self, pointer: str) -> CompiledGrammar:
        root = self.compile_values(pointer)
        if (impossible := self._impossible(pointer)) is not None:
            raise InvalidSchema(impossible, "no value can satisfy this schema")
        paths = {name: self._goals.path(goal) for goal, name in self._rules.items() if goal}
        rules = self._grammar.finish(root, paths.get)
        return CompiledGrammar(rules, self._report.unenforced, self._budget.share)

    def _impossible(self, pointer: str, seen: frozenset[str] = frozenset()) -> str | None:
        if pointer in seen or self._goals.satisfiable(((self._normaliser.at(pointer), True),)):
            return None
        inner = (self._impossible(each, seen | {pointer}) for each in self._normaliser.needed(pointer))
        return next((each for each in inner if each is not None), pointer)

    def _value(self, goal: Goal, hint: str) -> Expr:
        """Write the rule later, because nesting must not use the stack."""
        if goal not in self._rules:
            self._rules[goal] = self._grammar.reserve("any" if goal == () else hint)
            self._waiting.append((goal, self._rules[goal]))
        return Ref(self._rules[goal])

    def _of_goal(self, goal: Goal, hint: str) -> Expr:
        branches = ((branch, kind) for kind in JsonKind for branch in self._goals.branches(goal, kind))
        return alt(*(self._of_branch(*each, hint) for each in branches if self._is_possible(*each)))

    def _of_branch(self, branch: Conjunction, kind: JsonKind, hint: str) -> Expr:
        if kind is JsonKind.NULL:
            return self._texts.null
        if kind is JsonKind.BOOLEAN:
            return alt(*map(self._texts.boolean, _booleans(branch)))
        if kind is JsonKind.NUMBER:
            if (multiples := self._numbers.multiples(branch)) is not None:
                options = multiples.items if isinstance(multiples, Alt) else (multiples,)
                return alt(*(self._grammar.structural("multiple", each) for each in options))
            language = self._numbers.language(branch)
            plain = {NUMBER: "number", INTEGER: "integer"}
            return self._number(language, plain.get(language, f"{hint}-number"))
        if kind is JsonKind.STRING:
            return self._lexemes.string(self._strings.language(branch))
        if kind is JsonKind.ARRAY:
            shape = array_shape(branch, self._goals)
            return NOTHING if shape is None else self._arrays.expr(shape, hint)
        return alt(*(self._object(each, branch, hint) for each in self._shapes.shapes(branch)))

    def _object(self, shape: ObjectShape, branch: Conjunction, hint: str) -> Expr:
        most = len(shape.members) + bool(shape.others)
        if shape.low > most:
            counts = [f.number for f in branch if isinstance(f.node, Size) and f.node.low > most]
            self._goals.refuse(counts, "over 1 cannot be enforced on names that may repeat")
            shape = replace(shape, low=most)
        return self._objects.expr(shape, hint)

    # Which branches have values

    def _is_possible(self, branch: Conjunction, kind: JsonKind) -> bool:
        if kind is JsonKind.NULL:
            return True
        if kind is JsonKind.BOOLEAN:
            return bool(_booleans(branch))
        if kind is JsonKind.NUMBER:
            if (multiples := self._numbers.multiples(branch)) is not None:
                return multiples is not NOTHING
            return not self._strings.plain.is_empty(self._numbers.language(branch))
        if kind is JsonKind.STRING:
            return not self._strings.plain.is_empty(self._strings.language(branch))
        if kind is JsonKind.ARRAY:
            return array_shape(branch, self._goals) is not None
        return bool(self._shapes.shapes(branch))

    def _distinct(self, goal: Goal, hint: str) -> Expr | None:
        """Return None if the engine would not see where values end. Numbers end with what follows them, so
        they stand alone."""
        if not self._is_json:
            return None
        if not self._goals.satisfiable(goal, JsonKind.NUMBER):
            return self._value(goal, hint)
        kinds = [kind for kind in JsonKind if self._goals.satisfiable(goal, kind)]
        if not self._is_compact or kinds != [JsonKind.NUMBER]:
            return None
        branches = self._goals.branches(goal, JsonKind.NUMBER)
        if any(self._numbers.multiples(branch) is not None for branch in branches):
            return None
        return self._number(alt(*map(self._numbers.language, branches)), hint)

    def _listed(self, goal: Goal) -> list[Expr] | None:
        found: dict[object, Expr] = {}
        for kind in JsonKind:
            for branch in self._goals.branches(goal, kind):
                values = self._listed_in(branch, kind)
                if values is None:
                    return None
                for value, expr in values.items():
                    key = (kind, value)  # as 1 is not true
                    found[key] = alt(found[key], expr) if key in found else expr
        return list(found.values()) if len(found) <= _MOST_LISTED else None

    def _listed_in(self, branch: Conjunction, kind: JsonKind) -> Mapping[object, Expr] | None:
        if kind is JsonKind.NULL:
            return {None: self._texts.null}
        if kind is JsonKind.BOOLEAN:
            return {b: self._texts.boolean(b) for b in _booleans(branch)}
        if kind is JsonKind.NUMBER and (integers := few_integers(branch, _MOST_LISTED)) is not None:
            return {Decimal(x): Text(str(x)) for x in integers}
        if not any(isinstance(f.node, Scalars) and f.is_true for f in branch):
            if not self._is_possible(branch, kind):
                return {}
            if kind is not JsonKind.STRING:
                return None
            texts = self._strings.plain.few(self._strings.language(branch), _MOST_LISTED)
            return None if texts is None else {x: self._lexemes.string(literal(x)) for x in texts}
        if kind is JsonKind.STRING:
            return {x: self._lexemes.string(literal(x)) for x in self._strings.listed(branch)}
        return {x: self._number(spelled(x), "number") for x in self._numbers.listed(branch)}


def _booleans(branch: Conjunction) -> list[bool]:
    listed = [(f.node.booleans, f.is_true) for f in branch if isinstance(f.node, Scalars)]
    assert len(listed) == len(branch), branch
    return [b for b in (True, False) if all((b in values) == is_true for values, is_true in listed)]


_SURROGATE = re.compile("[\ud800-\udfff]")
ANY_OBJECT: dict[str, Json] = {"type": "object"}


def grammar_maker(
    check: Callable[[str], object],
    writable_bytes: Collection[int] = range(256),
    *,
    has_own_numbers: bool = False,
) -> GrammarMaker:
    """`check`: raises InvalidRequest for Lark that cannot run. `writable_bytes`: bytes of its vocabulary.

    `has_own_numbers`: control tokens keep their numbers there; else they follow `BYTES_AND_END`.
    """
    unknown = of_bytes(set(range(256)).difference(writable_bytes))

    def make(order: GrammarOrder) -> GrammarAnswer:
        try:
            compiled = _compiled(order, unknown)
            num_read = len(order.text) if order.source in _READ else 0
            translation = Translation(compiled.rules, num_read=num_read)
            lark = translation.text()
            check(lark if has_own_numbers else translation.text(numbered_from(BYTES_AND_END)))
            for part in translation.intersections():
                check(part)
        except InvalidRequest as raised:
            error = raised
            if isinstance(raised, SchemaTooLarge) and order.source in _INPUT_NAMES:
                error = GrammarTooLarge(_INPUT_NAMES[order.source], raised)
            return RefusedGrammar(str(error), error.code, getattr(error, "path", None))
        return MadeGrammar(
            lark=lark,
            rules=packed_rules(compiled.rules),
            unenforced=tuple((each.path, each.keyword) for each in compiled.unenforced),
            share=compiled.share + translation.share,
            is_raw=compiled.is_raw,
        )

    return make


_READ = (GrammarSource.GBNF, GrammarSource.LARK)
_INPUT_NAMES = {
    GrammarSource.REGEX: "The pattern",
    GrammarSource.RUST_REGEX: "The pattern",
    GrammarSource.CHOICES: "The list of choices",
    GrammarSource.GBNF: "The grammar",
    GrammarSource.LARK: "The grammar",
    GrammarSource.PARTS: "The grammar of all tools and the answer together",
}


def _compiled(order: GrammarOrder, unknown: CharSet) -> CompiledGrammar:
    """`unknown`: characters that cannot be written, except as escapes in JSON."""
    options = Options(
        whitespace=Whitespace.FLEXIBLE if order.is_flexible else Whitespace.COMPACT,
        additional=Additional.OPEN if order.is_open else Additional.CLOSED,
        values=order.values,
        strict=order.is_strict,
    )
    match order.source:
        case GrammarSource.SCHEMA:
            found = compile_schema(json.loads(order.text), options, order.pointer)
            has_escapes = order.values.notation is Notation.JSON
            return found if has_escapes else replace(found, rules=without_characters(found.rules, unknown))
        case GrammarSource.ANY_OBJECT:
            return replace(compile_schema(ANY_OBJECT, options), share=0.0)
        case GrammarSource.REGEX:
            return CompiledGrammar(without_characters(regex_rules(order.text), unknown))
        case GrammarSource.CHOICES:
            return CompiledGrammar(without_characters(choice_rules(json.loads(order.text)), unknown))
        case GrammarSource.GBNF:
            rules = parse_gbnf(order.text)
            if names_tokens(rules):
                raise InvalidRequest("Control tokens (<[...]>) cannot be named: write characters.")
            return CompiledGrammar(without_characters(rules, unknown))
        case GrammarSource.LARK | GrammarSource.RUST_REGEX:
            try:
                return _tool_input(order, unknown)
            except RecursionError:
                raise InvalidGrammar(1, 1, "rules or groups are nested too deep") from None
        case GrammarSource.PARTS:
            parts = {rule: unpacked_rules(part) for rule, part in order.parts.items()}
            return CompiledGrammar(composed(order.text, parts))


def _tool_input(order: GrammarOrder, unknown: CharSet) -> CompiledGrammar:
    if order.source is GrammarSource.LARK:
        rules = lark_rules(order.text)
    else:
        rules = language_rules(rust_language(order.text, Limits()), order.text)
    rules = pruned_rules(rules)
    if not rules:
        raise InvalidGrammar(1, 1, "no text matches")
    share = len(order.text) / MOST_LARK_CHARACTERS + len(rules) / MOST_RULES
    texts = without_characters(rules, unknown)
    raw = raw_texts(texts, order.text_end) if order.text_end else {}
    return CompiledGrammar(raw or quoted_texts(texts), share=share, is_raw=bool(raw))


def regex_rules(pattern: str) -> GrammarRules:
    """Return the grammar of texts that match as a whole, anchored or not."""
    return language_rules(full_language(pattern, Limits()), pattern)


def language_rules(language: Expr, pattern: str) -> GrammarRules:
    budget = Budget(Limits())
    grammar, plain = GrammarBuilder(budget), PlainLanguages(budget)
    if plain.is_empty(language):
        raise InvalidSchema("", f"nothing matches the pattern {pattern[:80]!r}")
    return grammar.finish(grammar.by_language(language, "text", plain))


def choice_rules(choices: list[str]) -> GrammarRules:
    if not choices:
        raise InvalidSchema("", "there must be at least one choice")
    budget = Budget(Limits())
    budget.check("values", len(choices))
    budget.spend("text", sum(map(len, choices)))
    if wrong := _SURROGATE.search("".join(choices)):
        raise InvalidSchema("", f"there is no character {ord(wrong[0]):#x}")
    grammar = GrammarBuilder(budget)
    return grammar.finish(grammar.define("choice", alt(*(Text(c) for c in dict.fromkeys(choices)))))
