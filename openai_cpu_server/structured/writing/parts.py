"""Grammars as parts of others: kept as bytes, and put together under one root.

`structured.maker` gives the server each grammar as bytes too. They come back where a grammar of tool calls
has the parameters of functions in it. Rules that parts have in common are there once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openai_cpu_server.structured.errors import SchemaTooLarge
from openai_cpu_server.structured.gbnf.parser import parse_gbnf
from openai_cpu_server.structured.gbnf.printer import text_length
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    ROOT,
    Alt,
    Chars,
    Expr,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Token,
    parts_first,
)
from openai_cpu_server.structured.options import Limits
from openai_cpu_server.structured.writing.grammar import renamed

RuleKey = tuple[str, str]
"""The key of the part to which a rule belongs, and the rule's name in that part."""


def composed(root: str, parts: Mapping[str, Rules], limits: Limits | None = None) -> Rules:
    """A grammar whose root is `root`, an expression of GBNF, perhaps with further rules on lines of their
    own. Each part's root goes by the part's key there. Raises InvalidGrammar, SchemaTooLarge."""
    limits = limits or Limits()
    rules = parse_gbnf(f"{ROOT} ::= {root}", known=parts.keys())
    inner = {(key, name): expr for key, part in parts.items() for name, expr in part.items()}
    names = _names(_first_alike(inner))
    of_parts: dict[str, dict[str, str]] = {}
    for (key, name), new in names.items():
        of_parts.setdefault(key, {})[name] = new
    for (key, name), expr in inner.items():
        rules.setdefault(names[key, name], renamed(expr, of_parts[key]))
    if text_length(rules) > limits.grammar:
        raise SchemaTooLarge("grammar", limits.grammar)
    return rules


def _first_alike(rules: Mapping[RuleKey, Expr]) -> dict[RuleKey, RuleKey]:
    """For each rule the first rule with the same meaning: the same name and expression, and so for all that
    they name.

    It first groups rules that look alike, then parts those that name different rules, until nothing changes.
    """
    marks: dict[RuleKey, object] = {(key, name): (name, expr) for (key, name), expr in rules.items()}
    num_groups = 0
    while True:
        firsts: dict[object, RuleKey] = {}
        groups = {rule: firsts.setdefault(mark, rule) for rule, mark in marks.items()}
        if len(firsts) == num_groups:
            return groups
        num_groups = len(firsts)
        marks = {
            rule: (groups[rule], *(groups[rule[0], name] for name in sorted(expr.references)))
            for rule, expr in rules.items()
        }


def _names(firsts: Mapping[RuleKey, RuleKey]) -> dict[RuleKey, str]:
    """New names. A root gets its part's key as its name, so that `root` can name it."""
    return {rule: rule[0] if rule[1] == ROOT else "-".join(first) for rule, first in firsts.items()}


class _Node(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """One expression. It comes behind its parts, which it has by their numbers."""

    kind: str
    text: str = ""
    numbers: tuple[int, ...] = ()


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    nodes: list[_Node]
    rules: dict[str, int]


_decoder = msgspec.msgpack.Decoder(_Packed)


def packed(rules: Rules) -> bytes:
    """A grammar as bytes. What several places have in common is there once."""
    numbers: dict[Expr, int] = {}
    nodes = []
    for expr in parts_first(list(rules.values())):
        nodes.append(_node(expr, tuple(map(numbers.__getitem__, expr.parts))))
        numbers[expr] = len(numbers)
    found = _Packed(nodes, {name: numbers[expr] for name, expr in rules.items()})
    return msgspec.msgpack.encode(found)


def unpacked(data: bytes) -> Rules:
    found = _decoder.decode(data)
    made: list[Expr] = []
    for node in found.nodes:
        made.append(_expr(node, made))
    return {name: made[number] for name, number in found.rules.items()}


def _node(expr: Expr, parts: tuple[int, ...]) -> _Node:
    kind = type(expr).__name__
    match expr:
        case Chars(chars):
            return _Node(kind, numbers=tuple(code for each in chars.ranges for code in each))
        case Text(text) | Ref(text):
            return _Node(kind, text)
        case Token(number):
            return _Node(kind, numbers=(number,))
        case Repeat(_, low, high):
            return _Node(kind, numbers=(*parts, low) if high is None else (*parts, low, high))
    assert isinstance(expr, (Seq, Alt)), expr
    return _Node(kind, numbers=parts)


def _expr(node: _Node, made: list[Expr]) -> Expr:
    """`made`: all expressions that come before it."""
    numbers = node.numbers
    match node.kind:
        case "Chars":
            return Chars(CharSet(tuple(zip(numbers[::2], numbers[1::2], strict=True))))
        case "Text":
            return Text(node.text)
        case "Ref":
            return Ref(node.text)
        case "Token":
            return Token(numbers[0])
        case "Repeat":
            return Repeat(made[numbers[0]], numbers[1], numbers[2] if len(numbers) > 2 else None)
    return (Seq if node.kind == "Seq" else Alt)(tuple(made[number] for number in numbers))
