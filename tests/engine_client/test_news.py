"""What is kept of what an engine process tells, and who is told of the rest."""

from __future__ import annotations

import time

from openai_cpu_server.contract.messages import (
    AdapterLoaded,
    Command,
    EngineOptions,
    HideSteps,
    LoadAdapter,
    Loading,
    LoadingPhase,
    ShowSteps,
    StepDone,
    StepFigures,
)
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter
from openai_cpu_server.contract.replica import Forecast, PrefixNews
from openai_cpu_server.contract.step import StepTrace
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.engine_client.subscribers import EngineNews
from tests.fakes import FAKE_INFO

FIGURES = StepFigures(sequences=1, tokens=1, predicted_ms=2.0, elapsed_ms=1.0)


class Observer:
    def __init__(self) -> None:
        self.told: list[StepFigures | str] = []

    def step_done(self, figures: StepFigures) -> None:
        self.told.append(figures)

    def engine_died(self, cause: str) -> None:
        self.told.append(cause)


class Story:
    def __init__(self, *adapters: Adapter) -> None:
        self.observer = Observer()
        options = EngineOptions(model_path="m.gguf", adapters=adapters)
        self.news = EngineNews(options, observer=self.observer, foretold=None, partner=None)
        self.requests = RequestReplay(time.monotonic, lambda: None, CulpritLedger(time.monotonic))
        self.sent: list[Command] = []
        self.next_process()

    def next_process(self) -> None:
        self.news.next_process()
        self.news.started(self._send)
        self.news.heard(Loading(phase=LoadingPhase.WEIGHTS, fraction=0.5), self.requests)
        self.news.ready(FAKE_INFO, self.requests, self._send)

    def _send(self, *commands: Command) -> None:
        self.sent += commands


def test_what_a_dead_process_has_told_of_itself_is_so_no_more() -> None:
    story = Story()
    news = story.news
    assert (news.info, news.progress.loaded) == (FAKE_INFO, 0.5)
    news.heard(
        StepDone((), None, FIGURES, forecast=Forecast(token_ms=1.0), prefixes=PrefixNews(saved=(7,))),
        story.requests,
    )
    assert news.forecast == Forecast(token_ms=1.0)
    assert news.held_blocks.since(None).saved == (7,)
    news.lost(story.requests)
    news.died("SIGSEGV")
    assert (news.kv_stats, news.forecast, news.held_blocks.since(None).saved) == (None, None, ())
    assert story.observer.told == [FIGURES, "SIGSEGV"]
    assert news.info == FAKE_INFO, "the next one has the same model"


def test_who_watches_sees_the_steps_of_this_process_and_the_next_until_it_looks_away() -> None:
    story, seen = Story(), []
    news, shown = story.news, StepDone((), None, FIGURES, shown=StepTrace(parts=()))
    news.show_steps(lambda figures, shown: seen.append(figures))
    assert story.sent == [ShowSteps()]
    news.heard(shown, story.requests)
    news.lost(story.requests)
    news.hide_steps()
    assert story.sent == [ShowSteps()], "nobody hears that"
    news.show_steps(lambda figures, shown: seen.append(figures))
    story.next_process()
    assert story.sent == [ShowSteps(), ShowSteps()]
    news.hide_steps()
    news.heard(shown, story.requests)
    assert story.sent[2:] == [HideSteps()]
    assert seen == [FIGURES]


def test_adapters_are_among_the_facts_once_they_are_loaded_and_loaded_by_each_process() -> None:
    one = Adapter(name="poet", path="p", digest="1" * 64)
    story = Story(one)
    assert story.sent == [LoadAdapter(one)], "it has said nothing of it at its start"
    assert story.news.is_owed(story.requests)
    story.news.heard(
        AdapterLoaded(LoadedAdapter(key=one.key, rank=8, num_tensors=14, size_bytes=1000)), story.requests
    )
    assert not story.news.is_owed(story.requests)
    assert [loaded.key for loaded in story.news.info.adapters] == [one.key]
    assert story.news.next_process() == (one,)
    assert story.news.info.adapters == ()
