"""The engine's core with the fake backend, step by step, and its traces of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.messages import (
    LENGTH,
    CancelRequest,
    ClearCache,
    EngineOptions,
    Experiment,
    FinishReason,
    HideSteps,
    Scheduling,
    Sharing,
    ShortenCpuToken,
    ShowSteps,
    StepDone,
    Submit,
    frame,
    read_event,
)
from openai_cpu_server.contract.model_info import TILE_TOKENS, CostCurve
from openai_cpu_server.contract.offload import Device, DevicePlacement
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Step, StepResult, TracePart, TraceState
from openai_cpu_server.engine.base import PreparedRequest, shared_ms
from openai_cpu_server.engine.embedding import build_embed_core
from openai_cpu_server.engine.generating import EngineCore, build_core
from openai_cpu_server.engine.process import calibrated
from openai_cpu_server.llama.measure.calibrate import CurveKey, curves
from tests.engine.driver import CURVE, OPTIONS, Engine
from tests.fakes import FAKE_INFO, SPECULATION, FakeBackend, FakeEmbedder, Panic
from tests.scheduler.driver import alone, request
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.thorough

BATCH = Priority.BATCH


def one_slot_backend() -> FakeBackend:
    return FakeBackend(msgspec.structs.replace(FAKE_INFO, max_seqs=1))


def test_the_requests_of_a_step_are_announced_when_they_change() -> None:
    engine = Engine()
    engine.submit(request("a", output=5))
    engine.step()
    engine.step()
    engine.serve(request("b", output=2))
    assert engine.started[:3] == [("a",), ("a", "b"), ("a",)]


def test_cancelled_requests_do_not_shorten_the_expected_length() -> None:
    engine = Engine(backend=one_slot_backend())
    for number in range(5):
        engine.submit(request(f"{number}", output=200))
        engine.step()
        engine.step()
        engine.core.handle(CancelRequest(f"{number}"))
        engine.run()
    engine.submit(request("long", output=200), request("next", output=200))
    engine.step()
    (place,) = engine.queues[-1].places
    assert place.first_token_ms > 100 * 5, "the 200 tokens before it come first"


class BrokenText(FakeBackend):
    """Backend that fails at the text of a token, from a number of computed tokens on."""

    def __init__(self, error: BaseException, from_computed: int = 0) -> None:
        super().__init__()
        self._error, self._from_computed = error, from_computed

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if special and self.num_computed >= self._from_computed:
            raise self._error
        return super().piece(token)


@pytest.mark.parametrize("speculation", ["off", "always"])
def test_a_sequence_that_fails_ends_alone(speculation: str) -> None:
    """Faulty tokens are a prompt's last one, one in its middle (sampled later), and one that is forced."""
    options = msgspec.structs.replace(OPTIONS, **SPECULATION[speculation], prefill_tokens=8)
    engine = Engine(options, FakeBackend(fault_on=290))
    good = [request(f"good{i}", prompt=20, output=40) for i in range(3)]
    bad = [
        request("last", tokens=(5, 6, 290), output=9),
        request("middle", tokens=(*range(2, 12), 290, *range(2, 40)), output=9),
        request("forced", output=20, constraint=Constraint(grammar="???" + chr(288) + "???")),
    ]
    engine.serve(*good[:2], *bad, good[2])
    for one in bad:
        finish = engine.finish(one.id)
        assert (finish.reason, finish.error) == (FinishReason.ERROR, "no numbers")
        assert not finish.is_own_fault
    for one in good:
        tokens, expected = engine.tokens(one.id), alone(one)
        assert tokens == expected[: len(tokens)]
        assert len(tokens) >= len(expected) - 1  # the end token is not sent
    assert engine.backend.opened == {}
    assert engine.last.kv.pool_blocks_used == 0


def test_a_panic_at_an_output_ends_its_request_alone() -> None:
    engine = Engine(backend=BrokenText(Panic("index out of bounds"), 21))
    engine.serve(request("bad", output=30, show_control_tokens=True), request("good", output=30))
    finish, other = engine.finish("bad"), engine.finish("good")
    assert (finish.reason, finish.is_own_fault) == (FinishReason.ERROR, False)
    assert other.reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert engine.backend.opened == {}


@pytest.mark.parametrize(
    "more",
    [
        {"sampling": Sampling(seed=1, repeat_penalty=1e-300)},
        {"sampling": Sampling(seed=1, temperature=float("nan"))},
        {"sampling": Sampling(seed=1, logit_bias={5: float("inf")})},
        {"sampling": Sampling(seed=1, top_k=2**31)},
        {"tokens": (2**40,)},
        {"tokens": (-1,)},
        {"max_tokens": -5},
    ],
)
def test_numbers_that_the_api_refuses_are_refused_by_the_engine_too(more: dict[str, object]) -> None:
    engine = Engine()
    engine.serve(request("bad", **more), request("good", output=3))
    finish = engine.finish("bad")
    assert finish.reason is FinishReason.ERROR
    assert "out of bounds" in (finish.error or "")
    assert engine.finish("good")


def test_a_request_that_fails_halfway_leaves_no_cells() -> None:
    engine = Engine(backend=BrokenText(MemoryError()))
    pattern = Constraint(grammar="abc?")
    one = request("good", constraint=pattern)
    engine.submit(request("bad", constraint=pattern, show_control_tokens=True), one)
    engine.core.handle(CancelRequest("bad"))
    engine.run()
    assert engine.finish("bad").reason is FinishReason.ERROR
    assert [e.finish.reason for e in engine.events if e.finish] == [FinishReason.ERROR, FinishReason.LENGTH]
    assert engine.backend.cells == {}


def test_a_request_with_a_slot_is_announced_before_it_is_computed() -> None:
    """Compiling its grammar beside the step may kill the process."""
    hurried = Scheduling(stream_rate=1000, stall_ms=1, batch_stall_ms=1)
    engine = Engine(msgspec.structs.replace(OPTIONS, scheduling=hurried))
    engine.submit(request("a", prompt=200), request("b", prompt=200))
    engine.step()
    assert engine.figures.sequences == 1
    assert set(engine.started[0]) == {"a", "b"}


def test_a_request_that_the_scheduler_cannot_handle_is_announced() -> None:
    engine = Engine()
    engine.submit(request("a", output=9), request("b", output=9))
    engine.step()
    engine.core.handle(PreparedRequest(Submit(request("bad", tokens=(2**70,))), ()))
    with pytest.raises(OverflowError):
        engine.run()
    assert engine.started[-1] == ("a", "b", "bad")


def test_a_prompt_reports_its_progress() -> None:
    engine = Engine()
    prompt = tuple(2 + number % 200 for number in range(700))
    engine.serve(request("a", tokens=prompt[:400]))
    reporting = msgspec.structs.replace(request("b", tokens=prompt), reports_progress=True)
    engine.serve(reporting, request("c", tokens=prompt[::-1]))
    reports = [each for event in engine.events if (each := event.progress) is not None and event.id == "b"]
    assert len(reports) == sum(event.progress is not None for event in engine.events)
    processed = [each.processed for each in reports]
    assert processed == sorted(set(processed))
    assert (processed[0], processed[-1]) == (reports[0].cached, 700)
    assert {each.total for each in reports} == {700}
    assert reports[0].cached >= 384
    left_ms = [each.left_ms or 0.0 for each in reports]
    assert left_ms == sorted(left_ms, reverse=True)
    assert (left_ms[0] > 0, left_ms[-1]) == (True, 0.0)
    assert len(reports) >= 3
    assert alone(reporting) == engine.tokens("b")
    resumed = Engine()
    resumed.core.handle(Submit(reporting, output=tuple(alone(reporting))[:2]))
    resumed.run()
    assert all(event.progress is None for event in resumed.events)


def test_clearing_the_cache_drops_its_blocks_but_for_pinned_prompts() -> None:
    pin = tuple(range(2, 130))
    engine = Engine(msgspec.structs.replace(OPTIONS, pinned_prompts=(pin,)))
    engine.serve(request("a", prompt=200))
    assert len(engine.backend.blocks) == 6
    engine.core.handle(ClearCache())
    engine.run()
    assert len(engine.backend.blocks) == 2
    engine.serve(request("b", tokens=(*pin, 7)))
    assert engine.finish("b").cached_tokens == engine.last.kv.cached_tokens == 128


def test_the_cache_outlives_the_engine_in_its_file_and_a_smaller_one_takes_what_fits(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, cache_file=str(tmp_path / "cache"))
    one = request("a", prompt=200, output=3)
    first = Engine(options)
    first.serve(one)
    first.submit(request("gone", prompt=70, output=100))
    next(first.core.step())  # the client leaves before the step is executed, so save_cache executes its saves
    first.core.save_cache(str(tmp_path / "cache"))
    second = Engine(options)
    second.serve(one)
    assert second.finish("a").cached_tokens == 199
    assert second.tokens("a") == alone(one)
    assert len(Engine(msgspec.structs.replace(options, cache_bytes=64 * 2)).backend.blocks) == 2


def test_a_server_without_a_cache_shares_nothing_and_leaves_the_file_alone(tmp_path: Path) -> None:
    path, prompt = tmp_path / "cache", tuple(range(2, 102))
    path.write_bytes(b"of an earlier run")
    engine = Engine(msgspec.structs.replace(OPTIONS, experiment=Experiment(prefix_sharing=False)))
    engine.serve(request("a", tokens=prompt), request("b", tokens=prompt))
    assert engine.backend.blocks == {}
    assert engine.last.kv.cached_tokens == 0
    engine.core.save_cache(str(path))
    assert path.read_bytes() == b"of an earlier run"


class BusyBackend(FakeBackend):
    """Backend that calls `meanwhile` during its next step and interrupts the step if that returns True."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], bool] | None = None

    def execute(self, step: Step) -> StepResult:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None or not meanwhile():
            return super().execute(step)
        super().execute(Step(verbs=step.verbs))
        return StepResult(interrupted=True)


@pytest.mark.parametrize(
    ("running", "newcomer", "interrupts"),
    [(BATCH, Priority.INTERACTIVE, True), (BATCH, BATCH, False), (Priority.INTERACTIVE,) * 2 + (False,)],
)
def test_a_newcomer_interrupts_batch_work(running: Priority, newcomer: Priority, interrupts: bool) -> None:
    backend = BusyBackend()
    engine = Engine(backend=backend)
    one = request("one", prompt=100, priority=running)
    engine.submit(one)
    command = Submit(request("two", priority=newcomer))

    def newcomer_comes() -> bool:
        forms = (command, engine.core.prepare(command))
        assert {engine.core.is_worth_interrupting(form) for form in forms} == {interrupts}
        return interrupts

    backend.meanwhile = newcomer_comes
    engine.step()
    assert backend.meanwhile is None
    engine.core.handle(command)
    engine.run()
    assert engine.finish("one").interruptions == int(interrupts)
    assert engine.tokens("one") == alone(one)
    assert not engine.core.is_worth_interrupting(command)


def test_a_newcomer_of_another_model_interrupts_batch_work_but_not_twice_in_a_row() -> None:
    backend = BusyBackend()
    engine = Engine(backend=backend)
    engine.submit(request("one", prompt=200, priority=BATCH))
    worth = []

    def look() -> bool:
        commands = (ShortenCpuToken(interrupts=False), ShortenCpuToken(interrupts=True), Submit(request("x")))
        worth.append([engine.core.is_worth_interrupting(command) for command in commands])
        return len(worth) == 1

    for _ in range(2):
        backend.meanwhile = look
        engine.step()
    assert worth == [[False, True, True], [False] * 3]
    assert engine.figures.tokens < 50, "the step after an interrupted one is short"
    engine.step()
    assert engine.figures.tokens > 50


@pytest.mark.parametrize(("cpu_expert_layers", "in_one_go"), [(0, True), (9, False)])
def test_batch_steps_on_a_device_are_short(cpu_expert_layers: int, in_one_go: bool) -> None:
    """A device cannot be interrupted. The CPU, which has the experts of each layer, can be."""
    gpu = Device(name="Vulkan0", backend="V", description="", kind="gpu", free_bytes=9000, total_bytes=9000)
    placed = {"layers": 9, "num_layers": 9, "weights_bytes": 1000, "cells_bytes": 1000}
    placement = msgspec.structs.replace(
        DevicePlacement.nowhere("", gpu), cpu_expert_layers=cpu_expert_layers, **placed
    )
    engine = Engine(backend=FakeBackend(msgspec.structs.replace(FAKE_INFO, placement=placement)))
    engine.submit(request("one", prompt=200, priority=BATCH))
    engine.step()
    assert (engine.figures.tokens == TILE_TOKENS) == in_one_go


def test_steps_beside_other_models_interactive_work_are_short() -> None:
    engine = Engine()
    engine.submit(request("one", prompt=200, priority=BATCH))
    engine.step(Sharing(beside_interactive=True))
    assert 0 < engine.figures.tokens < 50


def test_events_without_computation_are_sent_while_another_model_computes() -> None:
    core = Engine(backend=one_slot_backend()).core
    assert core.work is None
    core.handle(Submit(request("batch", priority=BATCH)))
    assert core.work is BATCH
    core.handle(Submit(request("large", prompt=5000)))
    core.handle(Submit(request("person")))
    assert core.work is Priority.INTERACTIVE
    done, queue = core.flush(Sharing(slowdown=3.0))
    assert [event.id for event in done.events] == ["large"]
    assert [(place.id, place.position) for place in queue.places] == [("person", 1), ("batch", 2)]
    assert list(core.flush(Sharing())) == []
    twin = Engine(backend=one_slot_backend()).core
    twin.handle(Submit(request("person")))
    (undisturbed,) = twin.flush(Sharing())
    assert queue.places[0].first_token_ms == pytest.approx(3 * undisturbed.places[0].first_token_ms)


def test_guessed_costs_are_measured_until_a_measurement_is_undisturbed_and_then_replaced() -> None:
    curves, seen = iter([None, CURVE]), list[bool]()

    def measure(is_wanted: Callable[[], bool]) -> CostCurve | None:
        seen.append(core.is_worth_interrupting(CancelRequest(id="x")))
        return next(curves)

    core = build_core(OPTIONS, FakeBackend(), None, measure)
    for is_wanted in (lambda: True, lambda: False):
        assert core.is_guessing
        core.calibrate(is_wanted)
        seen.append(core.is_worth_interrupting(CancelRequest(id="x")))
    assert seen == [True, False] * 2
    assert not core.is_guessing
    assert predicted_ms(core) == pytest.approx(5 + 995 * 99 / 255)
    assert not build_core(OPTIONS, FakeBackend(), CURVE, measure).is_guessing, "the curve was measured"


def predicted_ms(core: EngineCore) -> float:
    """Return the prediction for a step of 99 tokens."""
    core.handle(Submit(request=request("a", prompt=100, output=1)))
    (done,) = (message for message in core.step() if isinstance(message, StepDone))
    return done.figures.predicted_ms


def test_an_engine_that_never_measures_uses_a_guess_or_the_curve_of_an_earlier_start(tmp_path: Path) -> None:
    info = msgspec.structs.replace(FAKE_INFO, path=str(tiny_model_path()))
    options = msgspec.structs.replace(OPTIONS, calibrate="never", cost_dir=str(tmp_path))
    guessing = calibrated(options, FakeBackend(info), lambda fraction: None)
    assert not guessing.is_guessing
    assert predicted_ms(guessing) < 100
    assert not list(tmp_path.iterdir())
    curves(tmp_path).put(CurveKey.of(info, options), CURVE)
    knowing = calibrated(options, FakeBackend(info), lambda fraction: None)
    assert predicted_ms(knowing) == pytest.approx(5 + 995 * 99 / 255)


def test_the_cpu_time_of_a_step_is_shared_among_clients_by_their_tokens() -> None:
    engine = Engine(msgspec.structs.replace(OPTIONS, cache_bytes=0))
    for name, prompt, client in (("a", 30, "key:ann"), ("b", 10, "key:bob"), ("c", 60, "key:ann")):
        engine.submit(request(name, prompt=prompt, output=1, client=client, priority=BATCH))
    engine.step()
    spent = engine.figures.spent_ms
    assert spent["key:ann"] == pytest.approx(9 * spent["key:bob"])
    assert spent["key:bob"] > 0
    assert shared_ms([("a", 1), ("b", 2), ("a", 5)], 80.0) == {"a": 60.0, "b": 20.0}
    assert shared_ms([], 5.0) == {}


def test_a_forecast_comes_with_the_last_step_and_only_where_it_is_enabled() -> None:
    silent, reporting = Engine(), Engine(msgspec.structs.replace(OPTIONS, reports_forecast=True))
    for engine in (silent, reporting):
        engine.serve(request("r", prompt=130, output=3))
    assert (silent.last.forecast, silent.last.prefixes) == (None, None)
    assert reporting.last.forecast.num_live == (0, 0)
    assert len(reporting.last.prefixes.saved) == 2


def test_figures_of_steps_have_tokens_sequences_and_preemptions() -> None:
    engine = Engine(EngineOptions(model_path=""))
    engine.serve(request("a", prompt=20, output=4))
    figures = [f for f in engine.all_figures if f.tokens]
    assert [(f.tokens, f.sampled, f.sequences) for f in figures] == [(20, 1, 1), *[(1, 1, 1)] * 3]
    assert all(f.predicted_ms > 0 and f.elapsed_ms >= 0 for f in figures)
    crowded = Engine(backend=FakeBackend(msgspec.structs.replace(FAKE_INFO, kv_tokens=256)))
    crowded.serve(
        *(request(f"b{i}", tokens=tuple(range(100, 160 + i)), output=60, priority=BATCH) for i in range(4))
    )
    assert sum(f.preemptions for f in crowded.all_figures) > 0


def traced_engine(*requests: GenerationRequest, max_seqs: int = 64, **options: object) -> Engine:
    info = msgspec.structs.replace(FAKE_INFO, max_seqs=max_seqs)
    engine = Engine(EngineOptions(**{"model_path": "", **options}), FakeBackend(info))
    engine.core.handle(ShowSteps())
    engine.submit(*requests)
    return engine


def traced_steps(*requests: GenerationRequest, **options: object) -> list[StepDone]:
    engine = traced_engine(*requests, **options)
    engine.run()
    return engine.done


def parts(steps: list[StepDone]) -> list[TracePart]:
    return [part for step in steps if step.shown for part in step.shown.parts]


def states(steps: list[StepDone]) -> list[TraceState]:
    return [step.shown.state for step in steps if step.shown and step.shown.state]


def test_steps_after_the_last_subscriber_have_no_trace() -> None:
    engine = traced_engine(request("a", output=4))
    engine.step()
    assert parts(engine.done)
    engine.core.handle(HideSteps())
    engine.run()
    steps = engine.done[2:]
    assert [step.shown for step in steps] == [None] * len(steps)
    assert b"shown" not in frame(steps[0])


CHAT = request("chat", prompt=3, output=2, client="key:ann")
JOB = request("job", prompt=4, output=1, priority=Priority.BATCH)


def test_a_trace_has_the_requests_of_a_step_by_kind_of_token() -> None:
    traced = parts(traced_steps(CHAT, JOB))
    for step in traced_steps(CHAT):
        assert read_event(frame(step)[LENGTH.size :]) == step
    assert [part for part in traced if part.id == "chat"] == [
        TracePart("chat", "key:ann", Priority.INTERACTIVE, "prompt", prompt=3, output=1),
        TracePart("chat", "key:ann", Priority.INTERACTIVE, "decode", decode=1, output=1),
    ]


def test_a_trace_counts_forced_tokens_and_accepted_drafts() -> None:
    traced = parts(traced_steps(request("a", output=9, constraint=Constraint(grammar="?abc?"))))
    assert sum(part.forced for part in traced) == 3
    assert sum(part.output for part in traced) == 6  # the last one ends it
    traced = parts(traced_steps(request("a", prompt=60, output=40), **SPECULATION["always"]))
    assert sum(part.output for part in traced) == 40
    assert all(0 <= part.accepted <= part.draft for part in traced)


def test_a_new_subscriber_of_an_idle_engine_gets_the_state_of_its_memory() -> None:
    (state,) = states(traced_steps(cache_bytes=6400))
    assert (state.pool_tiles, state.tile_blocks, state.holdings) == (256, 1, ())


def test_shared_cells_are_held_by_all_requests_that_share_them() -> None:
    long = request("a", prompt=100, output=30)
    engine = traced_engine(long, cache_bytes=0)
    engine.core.handle(HideSteps())
    engine.step()
    engine.step()
    engine.submit(msgspec.structs.replace(long, id="b"))
    engine.step()
    engine.core.handle(ShowSteps())
    engine.step()
    (state,) = states(engine.done)
    tiles = [{first + n for first, count in h.runs for n in range(count)} for h in state.holdings]
    assert [h.id for h in state.holdings] == ["a", "b"]
    assert len(tiles[0] & tiles[1]) == 99 // 16


def test_a_trace_has_the_reason_of_each_wait() -> None:
    state, *_, last = states(traced_steps(request("a", output=3), request("b", output=3), max_seqs=1))
    assert [(wait.id, wait.why) for wait in state.waits] == [("b", "slot")]
    assert (last.holdings, last.waits) == ((), ())  # the trace of an idle engine is empty


def test_a_trace_has_embedded_inputs_too() -> None:
    engine = build_embed_core(EngineOptions(model_path=""), FakeEmbedder())
    engine.handle(ShowSteps())
    engine.handle(Submit(EmbedRequest(id="e", inputs=((3, 4), (5,)), client="user:bob")))
    assert engine.has_work
    steps = [message for message in engine.step() if isinstance(message, StepDone)]
    assert parts(steps) == [TracePart("e", "user:bob", Priority.INTERACTIVE, "prompt", prompt=3)]


def test_each_step_is_logged_with_its_requests_at_debug_level_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="openai_cpu_server.engine.generating")
    traced_steps(CHAT, JOB)
    assert caplog.records == []
    caplog.set_level(logging.DEBUG, logger="openai_cpu_server.engine.generating")
    traced_steps(CHAT, JOB)
    logged = [record.fields for record in caplog.records]
    keys = ("id", "priority", "tokens", "decodes")
    spans = [(*map(part.get, keys), *part["why"].items()) for step in logged for part in step["spans"]]
    assert sorted(spans) == [
        ("chat", "interactive", 1, True, ("decode", 1)),
        ("chat", "interactive", 3, False, ("prompt", 3)),
        ("job", "batch", 4, False, ("prompt", 4)),
    ]
    assert all(step["elapsed_ms"] >= 0 and step["interrupted"] is False for step in logged)
    assert [step["started_s"] for step in logged] == sorted(step["started_s"] for step in logged)
    assert "tokens of" in caplog.records[0].getMessage()
