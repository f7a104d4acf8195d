"""A grammar under construction. Rules of characters are lexemes, which llguidance reads greedily.

Lexemes that begin alike must end alike, so strings, numbers and keys are rules of their own. The recursive
rule `never`, which matches nothing, keeps a rule with punctuation a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from openai_cpu_server.contract.grammar import FIRST_ITEM, OTHER_ITEM, is_list_item
from openai_cpu_server.structured.gbnf.parser import MOST_TIMES, parse_gbnf
from openai_cpu_server.structured.languages.automaton import Automaton, PlainLanguages, state_rules
from openai_cpu_server.structured.languages.charset import ANY, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    NOTHING,
    ROOT,
    Alt,
    And,
    Chars,
    Expr,
    GrammarRules,
    Multiples,
    Not,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
    alt,
    parts_first,
    rebuilt,
    repeat,
    rewritten,
    seq,
)
from openai_cpu_server.structured.languages.rules import order, users
from openai_cpu_server.structured.options import Budget, InvalidSchema, Limits, SchemaTooLarge
from openai_cpu_server.structured.scalars.numbers import multiples_between

_NEVER = "never"
_RESERVED = (ROOT, _NEVER, "start")
S = TypeVar("S")


class GrammarBuilder:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._rules: GrammarRules = {}
        self._shared: dict[Expr, Ref] = {}
        self._counts: dict[str, int] = dict.fromkeys(_RESERVED, 1)

    def reserve(self, hint: str) -> str:
        """Names are lower case, because readers give case a meaning."""
        stem = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:24].strip("-")
        stem = stem if stem[:1].isalpha() else f"r{stem}"
        count = self._counts.get(stem, 0) + 1
        while count > 1 and f"{stem}-{count}" in self._counts:
            count += 1
        self._counts[stem] = count
        name = stem if count == 1 else f"{stem}-{count}"
        self._counts.setdefault(name, 1)
        return name

    def set(self, name: str, expr: Expr) -> None:
        self._budget.spend("rules")
        self._rules[name] = expr

    def define(self, hint: str, expr: Expr) -> Expr:
        """Equal expressions share a rule."""
        if isinstance(expr, (Ref, Text)):
            return expr
        if expr not in self._shared:
            name = self.reserve(hint)
            self._shared[expr] = Ref(name)
            self.set(name, expr)
        return self._shared[expr]

    def by_states(self, hint: str, automaton: Automaton, written: Callable[[CharSet], Expr]) -> Expr:
        names = [self.reserve(hint) for _ in automaton.edges]
        for name, expr in state_rules(automaton, names, written).items():
            self.set(name, expr)
        return Ref(names[0])

    def by_language(self, language: Expr, hint: str, plain: PlainLanguages) -> Expr:
        simple = plain.simplified(language)
        if simple is not None:
            return self.define(hint, simple)
        return self.by_states(hint, plain.automaton(language), Chars)

    def by_moves(self, hint: str, start: S, moves: Callable[[S], Iterable[tuple[Expr, S | None]]]) -> Expr:
        """`moves`: texts with the state behind each, or None at the end."""
        names, queue = {start: self.reserve(hint)}, [start]
        for state in queue:
            options = []
            for text, following in moves(state):
                if following is not None and following not in names:
                    names[following] = self.reserve(hint)
                    queue.append(following)
                options.append(text if following is None else seq(text, Ref(names[following])))
            self.set(names[state], alt(*options))
        return Ref(names[start])

    def structural(self, hint: str, lexeme: Expr) -> Expr:
        """Return `lexeme | never`, which is not read as one lexeme."""
        if _NEVER not in self._rules:
            self.set(_NEVER, seq(Chars(~ANY), Ref(_NEVER)))
        return self.define(hint, alt(lexeme, Ref(_NEVER)))

    def list_items(self, hint: str, item: Expr) -> tuple[Expr, Expr]:
        name = self.reserve(f"{hint}-set")
        for mark in (FIRST_ITEM, OTHER_ITEM):
            self.set(name + mark, item)
        return Ref(name + FIRST_ITEM), Ref(name + OTHER_ITEM)

    def finish(self, root: Expr, path_of: Callable[[str], str | None] = lambda rule: None) -> GrammarRules:
        """Return the reachable rules. Raises SchemaTooLarge, or InvalidSchema if nothing matches."""
        self._rules[ROOT] = root
        rules = _productive(self._rules)
        if ROOT not in rules:
            raise InvalidSchema("", "no value can satisfy this schema")
        rules = _reachable(_merged(rules))
        most = self._budget.limits.levels
        _, deepest = order(rules, ROOT, most)
        paths = [path for rule in deepest if (path := path_of(rule)) is not None]
        if paths:
            raise SchemaTooLarge("levels", most, paths[-1])
        found = _with_literals(rules)
        self._budget.spend("grammar", text_length(found))
        return found


def _with_literals(rules: GrammarRules) -> GrammarRules:
    """Join characters to literals. No text is as long as the largest counts."""
    found: dict[Expr, Expr] = {}
    for expr in parts_first(rules.values()):
        parts = [found[x] for x in expr.parts]
        if isinstance(expr, Repeat) and expr.high is not None and expr.low <= MOST_TIMES:
            found[expr] = repeat(parts[0], expr.low, min(expr.high, MOST_TIMES))
        elif isinstance(expr, Alt) and EMPTY in parts:
            found[expr] = repeat(alt(*(x for x in parts if x != EMPTY)), 0, 1)
        else:
            found[expr] = rebuilt(expr, _joined(parts) if isinstance(expr, Seq) else parts)
    return {name: found[expr] for name, expr in rules.items()}


def _joined(items: Iterable[Expr]) -> Iterator[Expr]:
    text = ""
    for item in items:
        if isinstance(item, Chars) and item.set.size == 1:
            text += chr(item.set.ranges[0][0])
            continue
        if text:
            yield Text(text)
            text = ""
        yield item
    if text:
        yield Text(text)


def text_length(rules: GrammarRules) -> int:
    lengths: dict[Expr, int] = {}
    for expr in parts_first(rules.values()):
        own = 3
        match expr:
            case Chars(chars):
                own = 2 + 3 * len(chars.ranges)
            case Text(text) | Ref(text):
                own = len(text) + 2
        lengths[expr] = own + sum(map(lengths.__getitem__, expr.parts))
    return sum(len(name) + lengths[expr] for name, expr in rules.items())


def without_characters(rules: GrammarRules, unknown: CharSet) -> GrammarRules:
    """Forbid these characters. Raises InvalidSchema if nothing is left."""
    if not unknown:
        return rules

    def without(expr: Expr) -> Expr:
        if isinstance(expr, Chars):
            return Chars(expr.set - unknown)
        is_unknown = isinstance(expr, Text) and any(ord(char) in unknown for char in expr.text)
        return NOTHING if is_unknown else expr

    found = _productive(rewritten(rules, without))
    if ROOT not in found:
        raise InvalidSchema("", "this model's vocabulary lacks bytes that are in every text of this form")
    return _reachable(found)


def _productive(rules: GrammarRules) -> GrammarRules:
    good: set[str] = {_NEVER}
    users_of = users(rules)
    queue = list(rules)
    for name in queue:
        if name not in good and _ends(rules[name], good):
            good.add(name)
            queue += users_of.get(name, ())
    if good >= rules.keys():
        return rules

    def restricted(expr: Expr) -> Expr:
        return NOTHING if isinstance(expr, Ref) and expr.name not in good else expr

    return rewritten({name: expr for name, expr in rules.items() if name in good}, restricted)


def _ends(expr: Expr, good: set[str]) -> bool:
    if isinstance(expr, Ref):
        return expr.name in good and expr.name != _NEVER
    if isinstance(expr, (Seq, And)):
        return all(_ends(x, good) for x in expr.items)
    if isinstance(expr, Alt):
        return any(_ends(x, good) for x in expr.items)
    if isinstance(expr, Repeat):
        return expr.low == 0 or _ends(expr.item, good)
    return not isinstance(expr, Chars) or bool(expr.set)


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    if expr.references.isdisjoint(names):
        return expr
    if isinstance(expr, Ref):
        return Ref(names[expr.name])
    if isinstance(expr, Seq):
        return Seq(tuple(renamed(x, names) for x in expr.items))
    if isinstance(expr, Repeat):
        return Repeat(renamed(expr.item, names), expr.low, expr.high)
    return rebuilt(expr, (renamed(x, names) for x in expr.parts))


def _merged(rules: GrammarRules) -> GrammarRules:
    while True:
        first: dict[Expr, str] = {}
        names: dict[str, str] = {}
        for name, expr in rules.items():
            if name == ROOT or is_list_item(name):
                continue
            if isinstance(expr, Ref) and expr.name not in (name, *names):
                names[name] = expr.name
            elif first.setdefault(expr, name) != name:
                names[name] = first[expr]
        names = {name: _last(name, names) for name in names}
        if not names:
            return rules
        rules = {n: renamed(e, names) for n, e in rules.items() if n not in names}


def _last(name: str, names: dict[str, str]) -> str:
    while name in names:
        name = names[name]
    return name


def pruned_rules(rules: GrammarRules) -> GrammarRules:
    found = _productive(rules)
    return _reachable(_merged(found)) if ROOT in found else {}


def _reachable(rules: GrammarRules) -> GrammarRules:
    order = {ROOT: rules[ROOT]}
    queue = [ROOT]
    for name in queue:
        for found in sorted(rules[name].references):
            if found in rules and found not in order:  # it may be a control token
                order[found] = rules[found]
                queue.append(found)
    return order


RuleKey = tuple[str, str]
"""Part and rule."""
_NO_RULE: RuleKey = ("", "")
"""Stands for control tokens, which expressions distinguish."""


def composed(root: str, parts: Mapping[str, GrammarRules], limits: Limits | None = None) -> GrammarRules:
    """Return GBNF with the root `root`, which names the roots of parts by their keys.

    Raises InvalidGrammar, SchemaTooLarge.
    """
    limits = limits or Limits()
    rules = parse_gbnf(f"{ROOT} ::= {root}", defined_names=parts.keys())
    inner = {(key, name): expr for key, part in parts.items() for name, expr in part.items()}
    names = {
        rule: rule[0] if rule[1] == ROOT else "-".join(first) for rule, first in _first_alike(inner).items()
    }
    of_parts: dict[str, dict[str, str]] = {}
    for (key, name), new in names.items():
        of_parts.setdefault(key, {})[name] = new
    for (key, name), expr in inner.items():
        rules.setdefault(names[key, name], renamed(expr, of_parts[key]))
    if text_length(rules) > limits.grammar:
        raise SchemaTooLarge("grammar", limits.grammar)
    return rules


def _first_alike(rules: Mapping[RuleKey, Expr]) -> dict[RuleKey, RuleKey]:
    """Groups of rules that look alike are split until nothing changes."""
    marks: dict[RuleKey, object] = {(key, name): (name, expr) for (key, name), expr in rules.items()}
    num_groups = 0
    while True:
        firsts: dict[object, RuleKey] = {}
        groups = {rule: firsts.setdefault(mark, rule) for rule, mark in marks.items()}
        if len(firsts) == num_groups:
            return groups
        num_groups = len(firsts)
        marks = {
            rule: (groups[rule], *(groups.get((rule[0], name), _NO_RULE) for name in sorted(expr.references)))
            for rule, expr in rules.items()
        }


_Node = tuple[str, tuple[int, ...], tuple[Any, ...]]
"""Class, numbers of the parts, which stand before it, and other fields."""
_decoder = msgspec.msgpack.Decoder(tuple[list[_Node], dict[str, int]])


def packed_rules(rules: GrammarRules) -> bytes:
    numbers: dict[Expr, int] = {}
    found: list[_Node] = []
    for expr in parts_first(rules.values()):
        fields: tuple[Any, ...] = ()
        match expr:
            case Chars(chars):
                fields = (chars.ranges,)
            case Text(field) | Ref(field) | Token(field):
                fields = (field,)
            case Repeat(_, low, high):
                fields = (low, high)
            case Multiples(step, low, high):
                fields = (step, low, high)
        found.append((type(expr).__name__, tuple(numbers[x] for x in expr.parts), fields))
        numbers[expr] = len(numbers)
    return msgspec.msgpack.encode((found, {name: numbers[expr] for name, expr in rules.items()}))


_MADE_OF: dict[str, Callable[..., Expr]] = {
    "Chars": lambda ranges: Chars(CharSet(tuple(map(tuple, ranges)))),
    "Seq": lambda *parts: Seq(parts),
    "Alt": lambda *parts: Alt(parts),
    "And": lambda *parts: And(parts),
    "Multiples": multiples_between,
    **{each.__name__: each for each in (Text, Ref, Token, Repeat, Not)},
}


def unpacked_rules(data: bytes) -> GrammarRules:
    found, names = _decoder.decode(data)
    made: list[Expr] = []
    for kind, numbers, fields in found:
        made.append(_MADE_OF[kind](*(made[number] for number in numbers), *fields))
    return {name: made[number] for name, number in names.items()}
