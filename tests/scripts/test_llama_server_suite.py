"""Comparison of a run of llama-server's own tests with the differences that are known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from llama_server_suite.outcomes import Differences, outcomes_in, told

from tests.docs.markdown import DOCS

REPORT = """<testsuites><testsuite>
<testcase classname="unit.test_a" name="test_one[x-1]" />
<testcase classname="unit.test_a" name="test_one[y-1]"><failure message="no">...</failure></testcase>
<testcase classname="unit.test_b" name="test_two"><error message="no">...</error></testcase>
<testcase classname="unit.test_b" name="test_three"><skipped message="no">...</skipped></testcase>
</testsuite></testsuites>"""


WRONG = """fails, and should not: test_b::test_two
passes, and is listed as a difference: test_a::test_one(x-1)""".splitlines()


@pytest.mark.parametrize(
    ("patterns", "is_as_known", "end"),
    [
        (("test_a::test_one(y-*", "test_b::*"), True, ["   2  a cause"]),
        (("test_a::*",), False, WRONG),
    ],
)
def test_known_differences_are_counted_and_others_reported(
    tmp_path: Path, patterns: tuple[str, ...], is_as_known: bool, end: list[str]
) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    lines, agrees = told(outcomes_in(tmp_path / "report.xml"), Differences({}, {"a cause": patterns}))
    assert agrees is is_as_known
    assert lines[3].split() == ["all", "1", "2", "1"]
    assert lines[-len(end) :] == end


def test_the_manual_lists_the_differences_and_the_tests_that_are_left_out() -> None:
    page, differences = (DOCS / "llama-server.md").read_text("utf-8"), Differences.read()
    section = page.split("## llama-server's own tests")[1]
    assert {*re.findall(r"^\| \d+ \| (.*) \|$", section, re.MULTILINE)} == {*differences.causes}
    assert dict(re.findall(r"^\| `(test_.*)` \| (.*) \|$", section, re.MULTILINE)) == differences.left_out
