"""D1: no regular expression takes a square or more of the text of a client or a model.

Repeats without a limit that read the same character, one behind the other or one in the other, are tried
wherever they might meet. A search for what begins with such a repeat tries each character.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai_cpu_server
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from openai_cpu_server.prompt.tool_formats.patterns import regex_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # there is no other way to look into a pattern
    import sre_compile
    import sre_constants as kinds
    import sre_parse

PACKAGE = Path(openai_cpu_server.__file__).parent
ALPHABET = [*map(chr, range(128)), "\xe9", "\u4e00"]


def written() -> Iterator[tuple[str, str]]:
    """The patterns in calls of `re`, and where they stand."""
    for path in PACKAGE.rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        for node in calls:
            is_of_re = ast.unparse(node.func).startswith("re.") and node.args
            if is_of_re and isinstance(pattern := getattr(node.args[0], "value", None), (str, bytes)):
                text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


def items(parsed: Any) -> Iterator[tuple[Any, Any]]:
    for kind, value in parsed:
        if kind is kinds.SUBPATTERN:
            yield from items(value[3])
        elif kind is not kinds.AT:
            yield kind, value


def is_loop(kind: Any, value: Any) -> bool:
    return kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT) and value[1] is kinds.MAXREPEAT


def characters(parsed: Any) -> set[str]:
    """What a repeat reads at once, if that is one character."""
    compiled = sre_compile.compile(parsed, re.DOTALL)
    return {char for char in ALPHABET if compiled.fullmatch(char)}


def faults(parsed: Any) -> Iterator[str]:
    before: set[str] = set()
    """Characters of a repeat that may go on here."""
    for kind, value in items(parsed):
        if is_loop(kind, value):
            read, last = characters(value[2]), list(items(value[2]))[-1:]
            if before & read:
                yield "one behind the other"
            ends = last[0][1][1] if last and last[0][0] is kinds.BRANCH else [last]
            if any(way and is_loop(*way[-1]) and characters(way[-1][1][2]) & read for way in ends):
                yield "one in the other"
            yield from faults(value[2])
            before = (before if value[0] == 0 else set()) | read
        elif kind not in (kinds.ASSERT, kinds.ASSERT_NOT):
            for way in value[1] if kind is kinds.BRANCH else ():
                yield from faults(way)
            before = set()


@pytest.mark.parametrize("pattern", [r"(?:a+)+b", r"(?:x|[ab]*)*b", r"\s*(\d*)\s*x", r"[\s,]*[^)]+?="])
def test_what_takes_a_square_is_found(pattern: str) -> None:
    assert list(faults(sre_parse.parse(pattern)))


def test_no_pattern_has_repeats_that_meet() -> None:
    found = {f"{at}: {one}": list(faults(sre_parse.parse(one))) for at, one in written()}
    assert len(found) > 50
    assert {at: why for at, why in found.items() if why} == {}


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_search_in_a_models_output_reads_it_once(name: str) -> None:
    form = TOOL_FORMATS[name]
    next_part = [form.parameters.next_part.pattern] if form.parameters is not None else []
    for pattern in (regex_of(form.head), *next_part):
        parsed = sre_parse.parse(pattern)
        assert not list(faults(parsed))
        first, _ = parsed.data[0]
        is_tied = first is kinds.AT or first is kinds.ASSERT_NOT
        assert is_tied or not is_loop(*next(items(parsed))), pattern


ENDLESS = {
    "letters": "a",
    "blanks": " ",
    "separators": ", ",
    "braces": "{ ",
    "names": 'a="',
    "tags": "<parameter=",
}


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_call_that_never_comes_is_read_to_its_end(name: str) -> None:
    """These took longer than any test waits."""
    form = TOOL_FORMATS[name]
    for text in ENDLESS.values():
        reader = form.reader({})
        parts = [*reader.feed(form.marker + text * 50_000), *reader.feed(text), *reader.finish()]
        assert isinstance(parts, list)
