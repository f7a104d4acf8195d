"""Facts that are stored from the messages of an engine process, and subscribers to the others."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.media import MeasuredMedia, MediaEmbeddings, PictureSize
from openai_cpu_server.contract.messages import (
    AdapterLoaded,
    Command,
    EngineOptions,
    HideSteps,
    LoadAdapter,
    Loading,
    LoadingPhase,
    MeasureMedia,
    ShowSteps,
    StepDone,
    StepFigures,
)
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter
from openai_cpu_server.contract.replica import Forecast, HeldUpdate, PrefixNews
from openai_cpu_server.contract.step import StepTrace
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.engine_client.subscribers import CachedBlocks, EngineNews, MediaShapes
from openai_cpu_server.errors import EngineUnavailable, InvalidRequest
from tests.fakes import FAKE_INFO

pytestmark = pytest.mark.anyio

FIGURES = StepFigures(sequences=1, tokens=1, predicted_ms=2.0, elapsed_ms=1.0)


class Story:
    def __init__(self, *adapters: Adapter) -> None:
        self.observed: list[StepFigures | str] = []
        observer = SimpleNamespace(step_done=self.observed.append, engine_died=self.observed.append)
        options = EngineOptions(model_path="m.gguf", adapters=adapters)
        self.news = EngineNews(options, observer=observer, foretold=None, partner=None)
        self.requests = RequestReplay(time.monotonic, lambda: None, CulpritLedger(time.monotonic))
        self.sent: list[Command] = []
        self.next_process()

    def next_process(self) -> None:
        self.news.next_process()
        self.news.started(self._send)
        self.news.handle(Loading(phase=LoadingPhase.WEIGHTS, fraction=0.5), self.requests)
        self.news.ready(FAKE_INFO, self.requests, self._send)

    def _send(self, *commands: Command) -> None:
        self.sent += commands


def test_facts_about_a_dead_process_are_dropped() -> None:
    story = Story()
    news = story.news
    assert (news.info, news.progress.loaded) == (FAKE_INFO, 0.5)
    news.handle(
        StepDone((), None, FIGURES, forecast=Forecast(token_ms=1.0), prefixes=PrefixNews(saved=(7,))),
        story.requests,
    )
    assert news.forecast == Forecast(token_ms=1.0)
    assert news.held_blocks.since(None).saved == (7,)
    news.lost(story.requests)
    news.died("SIGSEGV")
    assert (news.kv_stats, news.forecast, news.held_blocks.since(None).saved) == (None, None, ())
    assert story.observed == [FIGURES, "SIGSEGV"]
    assert news.info == FAKE_INFO, "the next process has the same model"


def test_a_subscriber_gets_the_steps_of_this_process_and_the_next_until_it_unsubscribes() -> None:
    story, seen = Story(), []
    news, shown = story.news, StepDone((), None, FIGURES, shown=StepTrace(parts=()))
    news.show_steps(lambda figures, shown: seen.append(figures))
    assert story.sent == [ShowSteps()]
    news.handle(shown, story.requests)
    news.lost(story.requests)
    news.hide_steps()
    assert story.sent == [ShowSteps()], "a dead process gets no command"
    news.show_steps(lambda figures, shown: seen.append(figures))
    story.next_process()
    assert story.sent == [ShowSteps(), ShowSteps()]
    news.hide_steps()
    news.handle(shown, story.requests)
    assert story.sent[2:] == [HideSteps()]
    assert seen == [FIGURES]


def test_loaded_adapters_are_among_the_facts_and_each_process_loads_them() -> None:
    one = Adapter(name="poet", path="p", digest="1" * 64)
    story = Story(one)
    assert story.sent == [LoadAdapter(one)], "the process had no such adapter at its start"
    assert story.news.is_pending(story.requests)
    story.news.handle(
        AdapterLoaded(LoadedAdapter(key=one.key, rank=8, num_tensors=14, size_bytes=1000)), story.requests
    )
    assert not story.news.is_pending(story.requests)
    assert [loaded.key for loaded in story.news.info.adapters] == [one.key]
    assert story.news.next_process() == (one,)
    assert story.news.info.adapters == ()


def test_the_first_update_has_all_blocks_and_later_ones_have_the_changes() -> None:
    held = CachedBlocks()
    held.handle(PrefixNews(saved=(1, 2)))
    first = held.since(None)
    assert (first.is_whole, sorted(first.saved)) == (True, [1, 2])
    held.handle(PrefixNews(saved=(3,), dropped=(1,)))
    held.handle(PrefixNews(saved=(1,), dropped=(2,)))
    assert held.since(first.version) == HeldUpdate(version=first.version + 2, saved=(1, 3), dropped=(2,))
    assert held.since(first.version + 2) == HeldUpdate(version=first.version + 2)


def test_an_update_has_all_blocks_after_a_new_process_or_too_many_changes() -> None:
    held = CachedBlocks()
    for number in range(400):
        held.handle(PrefixNews(saved=(number,)))
    assert len(held.since(0).saved) == 400
    assert held.since(0).is_whole
    held.clear()
    assert held.since(400) == HeldUpdate(version=401, is_whole=True)
    assert held.since(9999).is_whole, "the version is that of another engine"


_NEWS = st.builds(
    PrefixNews, saved=st.lists(st.integers(0, 9)).map(tuple), dropped=st.lists(st.integers(0, 9)).map(tuple)
)


@given(st.lists(st.tuples(_NEWS, st.booleans(), st.booleans())))
def test_a_follower_has_the_same_blocks(story: list[tuple[PrefixNews, bool, bool]]) -> None:
    held, copy, version = CachedBlocks(), set[int](), None
    for news, dies, updates in story:
        held.handle(news)
        if dies:
            held.clear()
        if updates:
            update = held.since(version)
            version = update.version
            copy = (set() if update.is_whole else copy - set(update.dropped)) | set(update.saved)
            assert copy == set(held.since(None).saved)


SMALL, LARGE = PictureSize(3, 2), PictureSize(300, 200)
SHAPE = ((1,), MediaEmbeddings(4, 4), (2,))


async def _begin_measuring(shapes: MediaShapes, *sizes: PictureSize) -> asyncio.Task[object]:
    task = asyncio.ensure_future(shapes.of(sizes))
    await anyio.lowlevel.checkpoint()
    return task


async def test_each_size_is_measured_once_for_any_number_of_requests() -> None:
    shapes, sent = MediaShapes(), list[MeasureMedia]()
    early = await _begin_measuring(shapes, SMALL, SMALL)
    assert shapes.is_awaited
    assert not shapes.is_pending, "no process runs yet"
    shapes.ready(sent.append)
    late = await _begin_measuring(shapes, LARGE, SMALL)
    assert [each.sizes for each in sent] == [(SMALL,), (LARGE,)]
    shapes.handle([MeasuredMedia(SMALL, SHAPE), MeasuredMedia(LARGE, why_not="It is too large.")])
    assert await early == (SHAPE, SHAPE)
    with pytest.raises(InvalidRequest, match="too large"):
        await late
    assert await shapes.of([SMALL]) == (SHAPE,)
    assert len(sent) == 2
    assert not shapes.is_awaited


async def test_a_size_that_has_killed_two_processes_is_refused() -> None:
    shapes, sent = MediaShapes(), list[MeasureMedia]()
    shapes.ready(sent.append)
    measuring = await _begin_measuring(shapes, LARGE)
    shapes.lost()
    shapes.ready(sent.append)
    assert [each.sizes for each in sent] == [(LARGE,)] * 2
    shapes.lost()
    with pytest.raises(InvalidRequest, match="300 x 200"):
        await measuring
    shapes.ready(sent.append)
    assert len(sent) == 2


async def test_the_end_fails_waiting_measurements() -> None:
    shapes = MediaShapes()
    measuring = await _begin_measuring(shapes, SMALL)
    shapes.end(lambda: EngineUnavailable("It ends."))
    with pytest.raises(EngineUnavailable):
        await measuring
