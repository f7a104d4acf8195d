"""Digests of models' files are computed once, and requests do not wait long for them."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from openai_cpu_server.models.served import FileDigests
from openai_cpu_server.server.model_builder import content_digest
from tests.api.fake_engine import FakeEngine
from tests.api.serving import served
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.anyio


async def test_the_digest_of_a_large_file_is_computed_once_in_the_background() -> None:
    model, may_end, times = served(FakeEngine()).default, threading.Event(), []

    def digest() -> str:
        times.append(1)
        may_end.wait()
        return "digest"

    model.content_digest = digest
    digests = FileDigests(wait_s=0.01)
    digests.begin(model)
    assert [await digests.of(model), await digests.of(model)] == [None, None]
    may_end.set()
    with anyio.fail_after(DEADLINE_S):
        while await digests.of(model) is None:
            await anyio.lowlevel.checkpoint()
    assert (await digests.of(model), len(times)) == ("digest", 1)


def test_equal_files_have_one_digest_wherever_they_are(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in "abc")
    one.write_bytes(b"x" * 3_000_000)
    two.write_bytes(b"x" * 3_000_000)
    other.write_bytes(b"x" * 2_999_999 + b"y")
    digests = [content_digest([path])() for path in (one, two, other)]
    assert digests[0] == digests[1] != digests[2]
    assert content_digest([one, two])() not in digests


def test_a_file_that_has_changed_since_has_no_digest(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    content = content_digest([path])
    assert content() is not None
    path.write_bytes(b"xy")
    assert content() is None
    path.unlink()
    assert content() is None
