"""The choice of replica: where the first token is expected soonest, with prefixes, loads and what fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import BLOCK_TOKENS, ByPriority, Forecast, HeldUpdate, block_hashes
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.replicas.router import ReplicaChoice, ReplicaReport, ReplicaRouter, RoutedRequest

_SYSTEM_PROMPT = tuple(range(10 * BLOCK_TOKENS))


def forecast(wait_ms: float = 0.0, *, batch_ms: float | None = None, live: int = 0) -> Forecast:
    wait = ByPriority(wait_ms, wait_ms if batch_ms is None else batch_ms)
    return Forecast(wait_ms=wait, token_ms=2.0, num_live=ByPriority(live, 0))


def notify(
    router: ReplicaRouter,
    replica: str,
    told: Forecast | None = None,
    *,
    state: EngineState = EngineState.READY,
    held: HeldUpdate | None = None,
    now_s: float = 0.0,
) -> None:
    report = ReplicaReport(state, told or forecast(), held)
    router.reported(replica, report, made_s=now_s, now_s=now_s)


def wanted(
    name: str = "r",
    tokens: tuple[int, ...] = _SYSTEM_PROMPT,
    *,
    namespace: str = "",
    priority: Priority = Priority.INTERACTIVE,
    avoids: frozenset[str] = frozenset(),
) -> RoutedRequest:
    blocks = block_hashes(tokens, namespace)
    return RoutedRequest(name, priority, len(tokens), blocks, avoids)


def choose(router: ReplicaRouter, one: RoutedRequest, now_s: float = 0.0) -> ReplicaChoice:
    return router.choose(one, now_s=now_s)


def spread(router: ReplicaRouter, requests: Iterable[RoutedRequest], now_s: float = 0.0) -> Counter[str]:
    counts = Counter[str]()
    for one in requests:
        choice = choose(router, one, now_s)
        router.sent(one, choice, now_s)
        counts[choice.replica] += 1
    return counts


def fleet(*waits_ms: float) -> ReplicaRouter:
    router = ReplicaRouter(Random(1))
    for name, wait_ms in zip("abcdefgh", waits_ms, strict=False):
        notify(router, name, forecast(wait_ms))
    return router


def held(tokens: tuple[int, ...], namespace: str = "") -> HeldUpdate:
    return HeldUpdate(version=1, saved=block_hashes(tokens, namespace))


def test_a_prefix_is_worth_the_time_that_it_saves_and_no_more() -> None:
    router = fleet(0, 0)
    notify(router, "a", forecast(1000), held=held(_SYSTEM_PROMPT[: 8 * BLOCK_TOKENS]))
    assert choose(router, wanted()).replica == "a", "1,000 ms of waiting for 1,024 ms of reading"
    notify(router, "a", forecast(1100))
    assert choose(router, wanted()).replica == "b"


def test_what_was_sent_is_held_and_what_is_dropped_is_not() -> None:
    router = fleet(0, 0)
    first = choose(router, wanted("1"))
    router.sent(wanted("1"), first, 0.0)
    router.began("1")
    router.ended("1")
    notify(router, first.replica, now_s=1.0)
    again = choose(router, wanted("2"), now_s=1.0)
    assert (again.replica, again.cached_tokens) == (first.replica, len(_SYSTEM_PROMPT) - 1)
    gone = HeldUpdate(version=2, dropped=block_hashes(_SYSTEM_PROMPT, ""))
    notify(router, first.replica, held=gone, now_s=1.0)
    assert choose(router, wanted("3"), now_s=1.0).cached_tokens == 0


def test_keys_salts_and_adapters_share_nothing() -> None:
    router = fleet(0, 0)
    notify(router, "a", held=held(_SYSTEM_PROMPT, "ann"))
    assert choose(router, wanted(namespace="ann")).replica == "a"
    assert choose(router, wanted(namespace="bob")).cached_tokens == 0
    assert choose(router, wanted(namespace="ann+french")).cached_tokens == 0


def test_a_crowd_does_not_follow_old_news() -> None:
    router = fleet(0, 0, 0, 0)
    crowd = (wanted(str(n), tuple(range(1000 * n, 1000 * n + 640))) for n in range(40))
    assert max(spread(router, crowd).values()) <= 12


def test_what_the_forecast_has_counted_is_not_counted_again() -> None:
    router = fleet(0)
    one = wanted("1")
    router.sent(one, choose(router, one), 1.0)
    reading_ms = 2 * len(_SYSTEM_PROMPT)
    other = wanted("2", (7,) * 64)
    assert round(choose(router, other, 1.0).expected_ms) == reading_ms + 128
    router.reported("a", ReplicaReport(EngineState.READY, forecast(500)), made_s=0.9, now_s=1.1)
    in_all = 400 + reading_ms + 128
    assert round(choose(router, other, 1.0).expected_ms) == in_all, "it was sent after that was made"
    router.reported("a", ReplicaReport(EngineState.READY, forecast(500)), made_s=1.1, now_s=1.2)
    assert round(choose(router, other, 1.1).expected_ms) == 500 + 128


def test_batch_work_fills_idle_replicas_and_makes_no_interactive_one_wait() -> None:
    router = fleet(0, 0)
    notify(router, "a", forecast(0, live=1), held=held(_SYSTEM_PROMPT))
    notify(router, "b", forecast(0, batch_ms=5000))
    job = wanted("job", priority=Priority.BATCH)
    assert choose(router, job).replica == "b", "however long its own queue is"
    router.sent(job, choose(router, job), 0.0)
    assert choose(router, wanted(tokens=(1,) * 64)).expected_ms == 128, "nobody interactive waits for it"


def test_a_replay_avoids_where_it_died() -> None:
    router = fleet(900, 0)
    notify(router, "a", forecast(900), state=EngineState.RESTARTING)
    assert choose(router, wanted()).replica == "b"
    notify(router, "a", forecast(900))
    assert choose(router, wanted(avoids=frozenset("b"))).replica == "a"
    router.gone("a")
    assert choose(router, wanted(avoids=frozenset("b"))).replica == "b", "there is no other"


def test_only_who_is_ready_gets_anything() -> None:
    router = fleet()
    assert router.choose(wanted(), now_s=0.0) is None
    for state in EngineState:
        notify(router, state.value, state=state)
    assert choose(router, wanted()).replica == "ready"
    assert router.choose(wanted(), now_s=0.0, among=["loading", "unknown"]) is None
    router.gone("ready")
    assert router.choose(wanted(), now_s=0.0) is None


def test_who_was_silent_for_long_is_the_last() -> None:
    router = fleet(0, 3000)
    notify(router, "b", forecast(3000), now_s=60.0)
    assert choose(router, wanted(), now_s=60.0).replica == "b"


def test_a_lost_replica_is_forgotten_with_its_prefixes() -> None:
    router = fleet(0, 0)
    notify(router, "a", held=held(_SYSTEM_PROMPT))
    router.gone("a")
    notify(router, "a")
    assert choose(router, wanted()).cached_tokens == 0


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["ready", "draining", "gone", "send", "end"]),
        st.integers(0, 9),
    )
)


@given(_EVENTS, st.integers(0, 99))
def test_whatever_happens_a_ready_replica_is_chosen_and_the_same_with_the_same_seed(
    events: list[tuple[str, str, int]], seed: int
) -> None:
    routers, ready = [ReplicaRouter(Random(seed)), ReplicaRouter(Random(seed))], set[str]()
    for now_s, (replica, event, number) in enumerate(events):
        one = wanted(str(number), tuple(range(number, number + 200)), priority=Priority(number % 2))
        choices = [router.choose(one, now_s=now_s) for router in routers]
        assert choices[0] == choices[1]
        assert (choices[0].replica in ready) if choices[0] is not None else not ready
        for router in routers:
            match event:
                case "gone":
                    router.gone(replica)
                case "send":
                    router.sent(one, ReplicaChoice(replica, 0, 0.0), now_s)
                case "end":
                    router.began(one.id)
                    router.ended(one.id)
                case state:
                    notify(router, replica, state=EngineState(state), now_s=now_s)
        ready = ready | {replica} if event == "ready" else ready
        ready = ready - {replica} if event in ("draining", "gone") else ready


def busy(live: int) -> Forecast:
    """A step takes 20 ms, and two more for each who runs; a prompt is read faster."""
    steps = tuple(20.0 + 2 * number for number in (1, 2, 4, 8, 16))
    return Forecast(token_ms=0.5, stream_ms=steps, num_live=ByPriority(live, 0))


def short(number: int) -> RoutedRequest:
    return wanted(str(number), tuple(range(10 * number, 10 * number + 10)))


def test_a_burst_after_a_burst_is_shared() -> None:
    """Those who ended just now are no reason against the replica that still reports them."""
    router = ReplicaRouter(Random(1))
    for name in "ab":
        notify(router, name, busy(0))
    for number in range(16):
        router.sent(short(number), ReplicaChoice("a", 0, 0.0), 0.0)
    notify(router, "a", busy(16), now_s=1.0)
    for number in range(16):
        router.began(str(number))
        router.ended(str(number))
    assert spread(router, map(short, range(16, 32)), now_s=1.1) == {"a": 8, "b": 8}


def test_an_idle_replica_is_worth_a_step_that_is_not_shared() -> None:
    router = ReplicaRouter(Random(1))
    notify(router, "a", busy(4))
    notify(router, "b", busy(0))
    counts = spread(router, map(short, range(8)))
    assert counts["b"] > counts["a"]


def test_a_burst_at_replicas_that_told_other_numbers_comes_out_even() -> None:
    """What one more stream costs is not what a token of a prompt costs."""
    router = ReplicaRouter(Random(1))
    for name, live in (("a", 2), ("b", 6)):
        notify(router, name, busy(live))
    counts = Counter(a=2, b=6) + spread(router, map(short, range(16)))
    assert abs(counts["a"] - counts["b"]) <= 2
