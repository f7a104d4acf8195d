"""The number of files of the package that one streamed chat passes through, with a limit."""

from __future__ import annotations

import pytest
from hops import chat_calls

from tests.trees import PACKAGE

pytestmark = pytest.mark.thorough

MOST_FILES = 82
"""The present number. A commit that raises it explains why."""


def test_a_streamed_chat_passes_through_no_more_files_than_before() -> None:
    processes = chat_calls(PACKAGE)
    assert set(processes) == {"API process", "engine process", "reader processes"}
    assert all(len(calls) > 20 for calls in processes.values()), "the recorder missed calls"
    files = {file for calls in processes.values() for file, *_ in calls}
    assert len(files) <= MOST_FILES, sorted(files)
