"""Loading and unloading of models, with fake engines and a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.errors import EngineUnavailable, ModelInUse, ModelNotLoaded, ModelTooLarge
from openai_cpu_server.models.keeper import RETRY_S, KeeperEntry, MemoryBudget, MemoryNeed, ModelKeeper
from tests.api.fake_engine import READY
from tests.clock import Clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


class FakeSleeper:
    """Loads as soon as `may_load` is set. `num_waiting` and `num_at_work` are its requests."""

    def __init__(self, clock: Clock, *, breaks: bool = False) -> None:
        self.state = EngineState.ASLEEP
        self.num_waiting, self.num_at_work = 0, 0
        self.last_use_s = clock()
        self.failed_s: float | None = None
        self.is_held_back = False
        self.may_load = asyncio.Event()
        self.may_load.set()
        self._clock = clock
        self.breaks = breaks
        self.num_checks = 0

    @property
    def is_at_work(self) -> bool:
        return self.num_at_work > 0

    @property
    def has_requests(self) -> bool:
        self.num_checks += 1
        return self.num_at_work + self.num_waiting > 0

    async def wait_until_checked(self) -> None:
        end = self.num_checks + 4
        await eventually(lambda: self.num_checks >= end)

    def status(self) -> EngineStatus:
        reason = "broken" if self.state is EngineState.FAILED else None
        return msgspec.structs.replace(READY, state=self.state, reason=reason)

    def wake(self) -> None:
        self.state = EngineState.LOADING

    async def settled(self) -> EngineState:
        await self.may_load.wait()
        if self.state is EngineState.LOADING:
            self.state = EngineState.FAILED if self.breaks else EngineState.READY
            self.failed_s = self._clock() if self.breaks else None
            self.is_held_back, self.last_use_s = False, self._clock()
        return self.state

    async def sleep(self) -> None:
        assert not self.is_at_work
        self.state = EngineState.ASLEEP

    @property
    def process_state(self) -> EngineState:
        return self.state

    def hold_back(self) -> None:
        self.is_held_back = True

    def release(self) -> None:
        self.is_held_back = False


class Story:
    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.keeper = ModelKeeper(MemoryBudget(100), self, clock=self.clock, patience_s=10)
        self.events: list[tuple[str, ...]] = []

    def model(
        self,
        name: str,
        num_bytes: int,
        *,
        pinned: bool = False,
        keep_alive_s: float | None = None,
        breaks: bool = False,
    ) -> tuple[KeeperEntry, FakeSleeper]:
        engine = FakeSleeper(self.clock, breaks=breaks)
        entry = KeeperEntry(
            name, engine, MemoryNeed(weights=num_bytes, cells=0, buffers=0), keep_alive_s, pinned
        )
        self.keeper.add(entry)
        return entry, engine

    def model_loaded(self, model: str, seconds: float) -> None:
        self.events.append(("loaded", model))

    def model_not_loaded(self, model: str) -> None:
        self.events.append(("not loaded", model))

    def model_unloaded(self, model: str, why: str) -> None:
        self.events.append(("unloaded", model, why))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def wait_for_events(self, number: int) -> None:
        await eventually(lambda: len(self.events) >= number)


@pytest.fixture
def story() -> Story:
    return Story()


async def until(engine: FakeSleeper, state: EngineState) -> None:
    await eventually(lambda: engine.state is state)


async def test_a_model_is_loaded_once_however_often_it_is_requested(story: Story) -> None:
    one, engine = story.model("one", 60)
    async with story.running():
        story.keeper.want(one)
        await asyncio.gather(story.keeper.load(one), story.keeper.load(one))
        await story.keeper.load(one)
        assert engine.state is EngineState.READY
    assert story.events == [("loaded", "one")]


async def test_the_least_recently_used_model_is_unloaded_to_make_room(story: Story) -> None:
    old, old_engine = story.model("old", 40)
    new, new_engine = story.model("new", 40)
    third, _ = story.model("third", 40)
    async with story.running():
        await story.keeper.load(new)
        await story.keeper.load(old)
        old_engine.last_use_s, new_engine.last_use_s = 1.0, 2.0
        await story.keeper.load(third)
    assert (old_engine.state, new_engine.state) == (EngineState.ASLEEP, EngineState.READY)
    assert ("unloaded", "old", "room") in story.events


async def test_idle_models_are_unloaded_and_pinned_ones_are_not(story: Story) -> None:
    idle, engine = story.model("idle", 10, keep_alive_s=60)
    pinned, pinned_engine = story.model("pinned", 10, pinned=True)
    async with story.running():
        await story.keeper.load(idle)
        await story.keeper.load(pinned)
        story.clock.now_s += 61
        await until(engine, EngineState.ASLEEP)
    assert pinned_engine.state is EngineState.READY
    assert story.events[-1] == ("unloaded", "idle", "idle")


async def test_a_model_whose_process_is_being_replaced_is_unloaded_too(story: Story) -> None:
    one, engine = story.model("one", 10)
    engine.state = EngineState.RESTARTING
    await story.keeper.unload(one)
    assert engine.state is EngineState.ASLEEP
    assert story.events == [("unloaded", "one", "asked")]


async def test_a_model_in_use_is_held_back_after_the_patience_and_finishes_its_work(story: Story) -> None:
    busy, busy_engine = story.model("busy", 60)
    other, other_engine = story.model("other", 60)
    async with story.running():
        await story.keeper.load(busy)
        busy_engine.num_at_work, busy_engine.num_waiting = 1, 1
        story.keeper.want(other)
        await busy_engine.wait_until_checked()
        assert not busy_engine.is_held_back
        story.clock.now_s += 11
        await eventually(lambda: busy_engine.is_held_back)
        assert busy_engine.state is EngineState.READY
        busy_engine.num_at_work = 0
        other_engine.num_waiting = 1
        await until(other_engine, EngineState.READY)
        assert busy.wanted_s is not None  # by the request that was held back
        other_engine.num_waiting = 0
        await until(busy_engine, EngineState.READY)


async def test_a_model_that_was_held_back_is_released_when_another_has_made_room(story: Story) -> None:
    one, one_engine = story.model("one", 50)
    two, two_engine = story.model("two", 50)
    third, third_engine = story.model("third", 50)
    async with story.running():
        await story.keeper.load(one)
        await story.keeper.load(two)
        one_engine.last_use_s, two_engine.last_use_s = 1.0, 2.0
        one_engine.num_at_work = two_engine.num_at_work = 1
        story.keeper.want(third)
        story.clock.now_s += 11
        await eventually(lambda: story.keeper.want(third) or one_engine.is_held_back)
        two_engine.num_at_work = 0
        third_engine.num_waiting = 1
        await until(third_engine, EngineState.READY)
        await eventually(lambda: not one_engine.is_held_back)
    assert (one_engine.state, one.is_held_back) == (EngineState.READY, False)


async def test_a_model_that_can_never_fit_is_refused_with_the_arithmetic(story: Story) -> None:
    story.model("pinned", 50, pinned=True)
    large, _ = story.model("large", 60)
    with pytest.raises(ModelTooLarge, match="'large' needs"):
        story.keeper.want(large)
    with pytest.raises(ModelTooLarge, match="of 'pinned', which is pinned"):
        await story.keeper.load(large)
    large.limit_bytes = 50  # the model's own limit
    with pytest.raises(ModelTooLarge, match="its 'memory'"):
        story.keeper.want(large)


async def test_a_model_that_failed_to_load_is_retried_after_a_while(
    story: Story,
) -> None:
    bad, engine = story.model("bad", 10, breaks=True)
    async with story.running():
        with pytest.raises(ModelNotLoaded, match="broken"):
            await story.keeper.load(bad)
        with pytest.raises(EngineUnavailable, match="broken"):
            story.keeper.want(bad)
        story.clock.now_s += RETRY_S
        assert story.keeper.may_retry(bad)
        engine.breaks = False
        story.keeper.want(bad)
        await until(engine, EngineState.READY)
    assert story.events == [("not loaded", "bad"), ("loaded", "bad")]


async def test_the_only_model_is_reloaded_by_itself_after_growing_delays(story: Story) -> None:
    """No request triggers it, because a server that is not ready gets none."""
    only, engine = story.model("only", 10, breaks=True)
    only.reloads_itself = True
    _, asleep = story.model("other", 10)
    async with story.running():
        with pytest.raises(ModelNotLoaded, match="broken"):
            await story.keeper.load(only)
        for number in range(1, 4):
            wait_s = RETRY_S * 2 ** (number - 1)
            story.clock.now_s += wait_s - 0.1
            assert not story.keeper.may_retry(only)
            story.clock.now_s += 0.1
            assert story.keeper.may_retry(only)
            await story.wait_for_events(number + 1)
        engine.breaks = False
        only.num_tries = 1000
        story.clock.now_s += 300.0
        await until(engine, EngineState.READY)
        engine.state, engine.failed_s = EngineState.FAILED, story.clock.now_s + 1000.0
        story.clock.now_s += 1000.0 + RETRY_S
        await until(engine, EngineState.READY)
    assert asleep.state is EngineState.ASLEEP
    assert story.events == [("not loaded", "only")] * 4 + [("loaded", "only")] * 2


async def test_a_model_that_can_never_be_loaded_is_not_retried(story: Story) -> None:
    large, engine = story.model("large", 1000)
    large.reloads_itself = True
    engine.state, engine.failed_s = EngineState.FAILED, story.clock.now_s - 1000.0
    small, _ = story.model("small", 1)
    async with story.running():
        await story.keeper.load(small)
    assert engine.state is EngineState.FAILED


async def test_unloading_spares_a_model_in_use(story: Story) -> None:
    one, engine = story.model("one", 10)
    async with story.running():
        await story.keeper.unload(one)  # it is not loaded
        await story.keeper.load(one)
        engine.num_waiting = 1
        with pytest.raises(ModelInUse):
            await story.keeper.unload(one)
        engine.num_waiting = 0
        await story.keeper.unload(one)
    assert engine.state is EngineState.ASLEEP
    assert story.events[-1] == ("unloaded", "one", "asked")


async def test_a_replaced_model_is_unloaded_and_refuses_requests(story: Story) -> None:
    old, engine = story.model("one", 60)
    async with story.running():
        await story.keeper.load(old)
        engine.num_at_work = 1
        old.is_replaced = True
        with pytest.raises(EngineUnavailable):
            story.keeper.want(old)
        await engine.wait_until_checked()
        assert engine.state is EngineState.READY
        engine.num_at_work = 0
        await until(engine, EngineState.ASLEEP)
    assert story.events[-1] == ("unloaded", "one", "replaced")
