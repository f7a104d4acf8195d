"""Known differences of llama-server's own tests are in the manual."""

from __future__ import annotations

import re

from llama_server_suite.outcomes import Differences

from tests.docs.markdown import DOCS


def test_the_manual_lists_the_differences_and_the_tests_that_are_left_out() -> None:
    page, differences = (DOCS / "llama-server.md").read_text("utf-8"), Differences.read()
    section = page.split("## llama-server's own tests")[1]
    assert {*re.findall(r"^\| \d+ \| (.*) \|$", section, re.MULTILINE)} == {*differences.causes}
    assert dict(re.findall(r"^\| `(test_.*)` \| (.*) \|$", section, re.MULTILINE)) == differences.left_out
