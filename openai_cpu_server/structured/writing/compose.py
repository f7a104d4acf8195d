"""Puts several compiled grammars under one root. Rules that they have in common are written once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openai_cpu_server.structured.errors import SchemaTooLarge
from openai_cpu_server.structured.options import Limits
from openai_cpu_server.structured.writing.grammar import ROOT

_LEXEME = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[a-z][a-z0-9-]*')
"""Matches a literal, a class or a name in text that `printer` wrote."""
_DEFINES = " ::= "

Rule = tuple[str, str]
"""The key of the part to which the rule belongs, and the rule's name in that part."""


def compose(root: str, parts: Mapping[str, str], limits: Limits | None = None) -> str:
    """A grammar whose root is the text `root`, which may have further rules on lines of their own.

    Each part is a grammar of this package; its root goes by the part's key there. Raises SchemaTooLarge.
    """
    limits = limits or Limits()
    bodies = {(key, name): body for key, gbnf in parts.items() for name, body in _rules(gbnf)}
    names = _names(_first_alike(bodies))
    lines = [f"{names[rule]}{_DEFINES}{_renamed(bodies[rule], rule[0], names)}" for rule in _kept(names)]
    text = "\n".join([f"{ROOT}{_DEFINES}{root}", *lines, ""])
    if len(text) > limits.grammar:
        raise SchemaTooLarge("grammar", limits.grammar)
    return text


def _rules(gbnf: str) -> list[tuple[str, str]]:
    """The (name, body) of each rule; `printer` writes one rule to a line."""
    split = (line.partition(_DEFINES) for line in gbnf.split("\n") if line)
    return [(name, body) for name, _, body in split]


def _references(body: str) -> list[str]:
    return [name for name in _LEXEME.findall(body) if name[0] not in '"[']


def _first_alike(bodies: Mapping[Rule, str]) -> dict[Rule, Rule]:
    """For each rule the first rule with the same meaning: the same name and text, and so for all that they
    name.

    It first groups rules that look alike, then parts those that name different rules, until nothing changes.
    """
    references = {rule: [(rule[0], name) for name in _references(body)] for rule, body in bodies.items()}
    marks: dict[Rule, object] = {(key, name): (name, body) for (key, name), body in bodies.items()}
    num_groups = 0
    while True:
        firsts: dict[object, Rule] = {}
        groups = {rule: firsts.setdefault(mark, rule) for rule, mark in marks.items()}
        if len(firsts) == num_groups:
            return groups
        num_groups = len(firsts)
        marks = {rule: (groups[rule], *(groups[each] for each in references[rule])) for rule in bodies}


def _names(firsts: Mapping[Rule, Rule]) -> dict[Rule, str]:
    """New names. A root gets its part's key as its name, so that `root` can name it."""
    return {rule: rule[0] if rule[1] == ROOT else "-".join(first) for rule, first in firsts.items()}


def _kept(names: Mapping[Rule, str]) -> list[Rule]:
    """One rule for each name."""
    first: dict[str, Rule] = {}
    for rule, name in names.items():
        first.setdefault(name, rule)
    return list(first.values())


def _renamed(body: str, key: str, names: Mapping[Rule, str]) -> str:
    return _LEXEME.sub(lambda x: x[0] if x[0][0] in '"[' else names[key, x[0]], body)
