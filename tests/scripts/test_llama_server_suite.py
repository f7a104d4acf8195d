"""What llama-server's own tests are known to come to, and how a run is compared with that."""

from __future__ import annotations

import re
from pathlib import Path

from llama_server_suite.outcomes import Differences, outcomes_in, told

from tests.docs.markdown import DOCS

REPORT = """<testsuites><testsuite>
<testcase classname="unit.test_a" name="test_one[x-1]" />
<testcase classname="unit.test_a" name="test_one[y-1]"><failure message="no">...</failure></testcase>
<testcase classname="unit.test_b" name="test_two"><error message="no">...</error></testcase>
<testcase classname="unit.test_b" name="test_three"><skipped message="no">...</skipped></testcase>
</testsuite></testsuites>"""


def compared(tmp_path: Path, *patterns: str) -> tuple[list[str], bool]:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    return told(outcomes_in(report), Differences({}, {"a cause": patterns}))


def test_what_is_known_to_differ_is_counted_by_its_cause(tmp_path: Path) -> None:
    lines, is_as_known = compared(tmp_path, "test_a::test_one(y-*", "test_b::*")
    assert lines[1:4] == [
        f"{'test_a':28}       1       1        0",
        f"{'test_b':28}       0       1        1",
        f"{'all':28}       1       2        1",
    ]
    assert (lines[-1], is_as_known) == ("   2  a cause", True)


def test_what_is_not_as_it_is_known_to_be_is_told(tmp_path: Path) -> None:
    lines, is_as_known = compared(tmp_path, "test_a::*")
    assert not is_as_known
    assert lines[-2:] == [
        "fails, and should not: test_b::test_two",
        "passes, and is listed as a difference: test_a::test_one(x-1)",
    ]


def test_the_manual_tells_what_differs_and_what_is_left_out() -> None:
    page, differences = (DOCS / "llama-server.md").read_text("utf-8"), Differences.read()
    section = page.split("## llama-server's own tests")[1]
    assert {*re.findall(r"^\| \d+ \| (.*) \|$", section, re.MULTILINE)} == {*differences.causes}
    assert dict(re.findall(r"^\| `(test_.*)` \| (.*) \|$", section, re.MULTILINE)) == differences.left_out
