"""D1: no regular expression takes quadratic time or more for the text of a client or a model.

The engine tries all splits between unlimited repeats that read the same character, in sequence or nested. A
search for a pattern that begins with such a repeat starts at each character.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from openai_cpu_server.prompt.tool_formats.patterns import regex_of
from tests.trees import package

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the standard library has no public parser of patterns
    import sre_compile
    import sre_constants as kinds
    import sre_parse

ALPHABET = [*map(chr, range(128)), "\xe9", "\u4e00"]


def patterns_in_code() -> Iterator[tuple[str, str]]:
    """Yield the place and the pattern of each call of `re`."""
    for module, source in package().items():
        for node in source.nodes(ast.Call):
            is_of_re = ast.unparse(node.func).startswith("re.") and node.args
            if is_of_re and isinstance(pattern := getattr(node.args[0], "value", None), (str, bytes)):
                text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
                yield f"{module}:{node.lineno}", text


def items(parsed: Any) -> Iterator[tuple[Any, Any]]:
    for kind, value in parsed:
        if kind is kinds.SUBPATTERN:
            yield from items(value[3])
        elif kind is not kinds.AT:
            yield kind, value


def is_loop(kind: Any, value: Any) -> bool:
    return kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT) and value[1] is kinds.MAXREPEAT


def characters(parsed: Any) -> set[str]:
    """Return the characters that this part of a pattern can read alone."""
    compiled = sre_compile.compile(parsed, re.DOTALL)
    return {char for char in ALPHABET if compiled.fullmatch(char)}


def faults(parsed: Any) -> Iterator[str]:
    before: set[str] = set()
    """Characters of the preceding repeats."""
    for kind, value in items(parsed):
        if is_loop(kind, value):
            read, last = characters(value[2]), list(items(value[2]))[-1:]
            if before & read:
                yield "in sequence"
            ends = last[0][1][1] if last and last[0][0] is kinds.BRANCH else [last]
            if any(way and is_loop(*way[-1]) and characters(way[-1][1][2]) & read for way in ends):
                yield "nested"
            yield from faults(value[2])
            before = (before if value[0] == 0 else set()) | read
        elif kind not in (kinds.ASSERT, kinds.ASSERT_NOT):
            for way in value[1] if kind is kinds.BRANCH else ():
                yield from faults(way)
            before = set()


@pytest.mark.parametrize("pattern", [r"(?:a+)+b", r"(?:x|[ab]*)*b", r"\s*(\d*)\s*x", r"[\s,]*[^)]+?="])
def test_patterns_of_quadratic_time_are_found(pattern: str) -> None:
    assert list(faults(sre_parse.parse(pattern)))


def test_no_pattern_has_repeats_that_meet() -> None:
    found = {
        f"{place}: {pattern}": list(faults(sre_parse.parse(pattern))) for place, pattern in patterns_in_code()
    }
    assert len(found) > 50
    assert {place: reasons for place, reasons in found.items() if reasons} == {}


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_search_in_a_models_output_reads_it_once(name: str) -> None:
    form = TOOL_FORMATS[name]
    next_part = [form.parameters.next_part.pattern] if form.parameters is not None else []
    for pattern in (regex_of(form.head), *next_part):
        parsed = sre_parse.parse(pattern)
        assert not list(faults(parsed))
        first, _ = parsed.data[0]
        is_anchored = first is kinds.AT or first is kinds.ASSERT_NOT
        assert is_anchored or not is_loop(*next(items(parsed))), pattern


REPEATED = {
    "letters": "a",
    "blanks": " ",
    "separators": ", ",
    "braces": "{ ",
    "names": 'a="',
    "tags": "<parameter=",
}


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_text_without_the_expected_call_is_read_to_its_end(name: str) -> None:
    """Read texts that once took longer than the deadline of tests."""
    form = TOOL_FORMATS[name]
    for text in REPEATED.values():
        reader = form.reader({})
        parts = [*reader.feed(form.marker + text * 50_000), *reader.feed(text), *reader.finish()]
        assert isinstance(parts, list)
