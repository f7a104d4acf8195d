"""Stories about the share of batch work in slots and time, beyond which interactive work goes first."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.sequence import PriorityPolicy, ShortestFirstPolicy
from tests.scheduler.driver import Driver, Spans, TokenCost, request

BATCH = Priority.BATCH


def test_without_a_floor_batch_work_comes_last() -> None:
    driver = Driver(slots=2, floor=0.0)
    driver.run(request("b", priority=BATCH), *(request(f"i{i}", output=20) for i in range(4)))
    assert driver.finished[-1] == "b"


def test_batch_work_takes_no_cells_while_interactive_work_waits_for_them() -> None:
    driver = Driver(slots=4, kv_tokens=256)
    driver.submit(request("i", prompt=150, output=60), request("j", prompt=150, output=20))
    steps = driver.run(request("b", prompt=20, output=20, priority=BATCH))
    order = [name for step in steps for name in step]
    assert order.index("j") < order.index("b")


def test_a_step_that_batch_work_has_saved_for_may_not_be_interrupted() -> None:
    driver = Driver(slots=4, floor=0.5)
    driver.submit(*(request(f"i{i}", output=60) for i in range(3)), request("b", output=60, priority=BATCH))
    steps = driver.steps(40)
    paired = zip(steps, driver.interruptible, strict=True)
    interruptible = [may_interrupt for step, may_interrupt in paired if set(step) == {"b"}]
    assert interruptible
    assert not any(interruptible)


def test_batch_work_keeps_its_share_beside_prompts_without_end() -> None:
    """Answers to the prompts have one token, so that no interactive sequence ever decodes."""
    driver = Driver(slots=10, kv_tokens=8192, decoding=64, idle=128)
    batch = [request(f"b{i}", prompt=50, output=400, priority=BATCH) for i in range(8)]
    driver.submit(*batch)
    driver.run_until(lambda: all(driver.outputs[one.id] for one in batch))
    before = len(driver.predicted_ms)
    steps = [driver.step(request(f"i{number}", prompt=100, output=1)) for number in range(120)]
    assert 0.09 <= share_of_batch(steps, driver.predicted_ms[before:]) <= 0.2


def share_of_batch(steps: list[Spans], predicted_ms: list[float]) -> float:
    batch_ms = 0.0
    for step, ms in zip(steps, predicted_ms, strict=True):
        tokens = sum(n for name, n in step.items() if name.startswith("b"))
        batch_ms += ms * tokens / sum(step.values())
    return batch_ms / sum(predicted_ms)


@settings(max_examples=8)
@given(
    slots=st.integers(2, 12),
    floor=st.sampled_from([0.05, 0.1]),
    prompt=st.integers(1, 120),
    output=st.integers(4, 60),
    batch_prompt=st.integers(1, 120),
)
def test_batch_work_has_its_share_of_any_few_seconds(
    slots: int, floor: float, prompt: int, output: int, batch_prompt: int
) -> None:
    """Interactive requests arrive without end beside batch work. Steps have a fixed cost, as real ones do."""
    cost = TokenCost(step_ms=8)
    driver = Driver(slots=slots, kv_tokens=16384, floor=floor, cost=cost, decoding=40)
    driver.step(*(request(f"b{i}", batch_prompt, 400, BATCH) for i in range(slots)))
    steps: list[Spans] = []
    for number in range(240):
        if driver.scheduler.sequences.num_waiting < 2 * slots:
            driver.submit(*(request(f"i{number}.{i}", prompt, output) for i in range(2 * slots)))
        steps.append(driver.step())
    for start in range(60, 180, 20):
        window = slice(start, start + 60)
        assert share_of_batch(steps[window], driver.predicted_ms[1:][window]) >= 0.9 * floor


SIZES = {"batch": (200, 60), "person": (200, 20), "steps": (10, 1), "wait": (300, 1), "cancel": (20, 1)}
history = st.lists(
    st.one_of(
        *(st.tuples(st.just(kind), st.integers(1, a), st.integers(1, b)) for kind, (a, b) in SIZES.items())
    ),
    max_size=25,
)


@settings(max_examples=100)
@given(
    history=history,
    slots=st.integers(1, 8),
    floor=st.sampled_from([0.0, 0.1, 0.5]),
    policy=st.sampled_from([PriorityPolicy, ShortestFirstPolicy]),
)
def test_after_any_history_a_newcomer_is_in_one_of_the_next_two_steps(
    history: list[tuple[str, int, int]], slots: int, floor: float, policy: type[PriorityPolicy]
) -> None:
    """The rule holds where a slot is free for interactive work or batch work holds one beyond its seats."""
    driver = Driver(slots=slots, kv_tokens=4096, floor=floor, policy=policy())
    names: list[str] = []
    for number, (kind, size, output) in enumerate(history):
        if kind in ("batch", "person"):
            names.append(f"{kind}{number}")
            priority = BATCH if kind == "batch" else Priority.INTERACTIVE
            driver.submit(request(names[-1], size, output, priority))
        elif kind == "wait":
            driver.now_s += size
        elif kind == "cancel" and names:
            driver.cancel(names[size % len(names)])
        elif kind == "steps":
            driver.steps(size)
    alive = [n for n in names if n.startswith("person") and driver.scheduler.sequences.get(n) is not None]
    seats = min(slots - 1, math.ceil(floor * slots))
    reading = [name for name in alive if not driver.outputs[name]]
    if reading or len(alive) >= slots - seats:
        return
    driver.submit(request("newcomer", 5, 3))
    assert "newcomer" in {**driver.step(), **driver.step()}
