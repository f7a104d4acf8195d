"""Readers prepare for grammars once the server is idle, or while a model loads whose clients use grammars."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import anyio.lowlevel
import msgspec
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.grammars import GrammarMark, ModelGrammars
from openai_cpu_server.server.fleet import prepare_grammars
from openai_cpu_server.structured.compiler import grammar_maker
from tests.api.fake_engine import READY, FakeEngine
from tests.api.serving import served
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


class Story:
    """A loading model, its live requests, and a log of actions in order."""

    def __init__(self, mark: GrammarMark | None = None) -> None:
        self.engine = FakeEngine(base_status=msgspec.structs.replace(READY, state=EngineState.LOADING))
        self.model = served(self.engine).default
        self.model.grammars = ModelGrammars(grammar_maker(self._check), mark)
        self.live = ["a request"]
        self.log: list[str] = []
        self.is_refused = False

    def _check(self, lark: str) -> None:
        self.log.append("made")
        if self.is_refused:
            raise InvalidRequest("The vocabulary has no end.")

    def requests(self) -> list[str]:
        self.log.append("checked")
        return self.live

    async def checked_again(self) -> None:
        end = len(self.log) + 2
        await eventually(lambda: len(self.log) >= end)

    def started(self) -> asyncio.Task[None]:
        start = functools.partial(self.log.append, "started")
        return asyncio.create_task(prepare_grammars(self.model, self.requests, start, look_s=0.001))


async def test_preparation_waits_for_the_model_and_for_an_idle_server() -> None:
    story = Story()
    warming = story.started()
    await anyio.lowlevel.checkpoint()
    assert story.log == []
    story.engine.base_status = READY
    await story.checked_again()
    assert set(story.log) == {"checked"}
    story.live.clear()
    await warming
    assert story.log[-3:] == ["checked", "started", "made"]
    story.model.grammars.of_any_object("response_format")
    assert story.log[-1] == "made"
    assert story.log.count("made") == 1


async def test_a_model_whose_clients_use_grammars_prepares_before_it_is_loaded(tmp_path: Path) -> None:
    story = Story(mark=GrammarMark(tmp_path / "folder", tmp_path / "model.gguf"))
    story.model.grammars.of_any_object("response_format")
    story.log.clear()
    story = Story(mark=GrammarMark(tmp_path / "folder", tmp_path / "model.gguf"))
    warming = story.started()
    await eventually(lambda: story.log == ["made"])
    story.engine.base_status = READY
    story.live.clear()
    await warming
    assert story.log == ["made", "checked", "started", "made"]


async def test_preparing_does_not_count_as_use(tmp_path: Path) -> None:
    story = Story(mark=GrammarMark(tmp_path, tmp_path / "model.gguf"))
    story.engine.base_status = READY
    story.live.clear()
    await story.started()
    assert story.log == ["checked", "started", "made"]
    assert not GrammarMark(tmp_path, tmp_path / "model.gguf").is_set


async def test_an_unusable_vocabulary_is_reported_to_the_first_request_with_a_grammar() -> None:
    story = Story()
    story.is_refused, story.engine.base_status = True, READY
    story.live.clear()
    await story.started()
    with pytest.raises(InvalidRequest, match="no end"):
        story.model.grammars.of_any_object("response_format")
