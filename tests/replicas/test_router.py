"""Choice of the replica with the earliest expected first token: prefixes, loads and failures."""

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
    estimate: Forecast | None = None,
    *,
    state: EngineState = EngineState.READY,
    held: HeldUpdate | None = None,
    now_s: float = 0.0,
) -> None:
    report = ReplicaReport(state, estimate or forecast(), held)
    router.reported(replica, report, made_s=now_s, now_s=now_s)


def request(
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
    assert choose(router, request()).replica == "a", "1,000 ms of waiting save 1,024 ms of reading"
    notify(router, "a", forecast(1100))
    assert choose(router, request()).replica == "b"


def test_a_replica_holds_the_prefix_of_a_sent_request_until_it_drops_it() -> None:
    router = fleet(0, 0)
    first = choose(router, request("1"))
    router.sent(request("1"), first, 0.0)
    router.began("1")
    router.ended("1")
    notify(router, first.replica, now_s=1.0)
    again = choose(router, request("2"), now_s=1.0)
    assert (again.replica, again.cached_tokens) == (first.replica, len(_SYSTEM_PROMPT) - 1)
    gone = HeldUpdate(version=2, dropped=block_hashes(_SYSTEM_PROMPT, ""))
    notify(router, first.replica, held=gone, now_s=1.0)
    assert choose(router, request("3"), now_s=1.0).cached_tokens == 0


def test_keys_salts_and_adapters_share_nothing() -> None:
    router = fleet(0, 0)
    notify(router, "a", held=held(_SYSTEM_PROMPT, "ann"))
    assert choose(router, request(namespace="ann")).replica == "a"
    assert choose(router, request(namespace="bob")).cached_tokens == 0
    assert choose(router, request(namespace="ann+french")).cached_tokens == 0


def test_a_burst_does_not_follow_an_old_report() -> None:
    router = fleet(0, 0, 0, 0)
    burst = (request(str(n), tuple(range(1000 * n, 1000 * n + 640))) for n in range(40))
    assert max(spread(router, burst).values()) <= 12


def test_a_request_within_the_forecast_is_not_counted_again() -> None:
    router = fleet(0)
    one = request("1")
    router.sent(one, choose(router, one), 1.0)
    reading_ms = 2 * len(_SYSTEM_PROMPT)
    other = request("2", (7,) * 64)
    assert round(choose(router, other, 1.0).expected_ms) == reading_ms + 128
    router.reported("a", ReplicaReport(EngineState.READY, forecast(500)), made_s=0.9, now_s=1.1)
    total_ms = 400 + reading_ms + 128
    assert round(choose(router, other, 1.0).expected_ms) == total_ms, "the request is newer than the report"
    router.reported("a", ReplicaReport(EngineState.READY, forecast(500)), made_s=1.1, now_s=1.2)
    assert round(choose(router, other, 1.1).expected_ms) == 500 + 128


def test_batch_work_fills_idle_replicas_and_delays_no_interactive_request() -> None:
    router = fleet(0, 0)
    notify(router, "a", forecast(0, live=1), held=held(_SYSTEM_PROMPT))
    notify(router, "b", forecast(0, batch_ms=5000))
    job = request("job", priority=Priority.BATCH)
    assert choose(router, job).replica == "b", "the length of its batch queue does not matter"
    router.sent(job, choose(router, job), 0.0)
    assert choose(router, request(tokens=(1,) * 64)).expected_ms == 128, "batch work does not delay it"


def test_a_replay_avoids_the_replicas_that_it_died_on() -> None:
    router = fleet(900, 0)
    notify(router, "a", forecast(900), state=EngineState.RESTARTING)
    assert choose(router, request()).replica == "b"
    notify(router, "a", forecast(900))
    assert choose(router, request(avoids=frozenset("b"))).replica == "a"
    router.gone("a")
    assert choose(router, request(avoids=frozenset("b"))).replica == "b", "b is the only replica"


def test_only_a_ready_replica_gets_requests() -> None:
    router = fleet()
    assert router.choose(request(), now_s=0.0) is None
    for state in EngineState:
        notify(router, state.value, state=state)
    assert choose(router, request()).replica == "ready"
    assert router.choose(request(), now_s=0.0, among=["loading", "unknown"]) is None
    router.gone("ready")
    assert router.choose(request(), now_s=0.0) is None


def test_a_replica_without_recent_reports_is_chosen_last() -> None:
    router = fleet(0, 3000)
    notify(router, "b", forecast(3000), now_s=60.0)
    assert choose(router, request(), now_s=60.0).replica == "b"


def test_a_lost_replica_is_forgotten_with_its_prefixes() -> None:
    router = fleet(0, 0)
    notify(router, "a", held=held(_SYSTEM_PROMPT))
    router.gone("a")
    notify(router, "a")
    assert choose(router, request()).cached_tokens == 0


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
        one = request(str(number), tuple(range(number, number + 200)), priority=Priority(number % 2))
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
    """Return a forecast with steps of 20 ms and 2 ms more for each stream. Prompts are read faster."""
    steps = tuple(20.0 + 2 * number for number in (1, 2, 4, 8, 16))
    return Forecast(token_ms=0.5, stream_ms=steps, num_live=ByPriority(live, 0))


def short_request(number: int) -> RoutedRequest:
    return request(str(number), tuple(range(10 * number, 10 * number + 10)))


def test_a_burst_after_a_burst_is_spread() -> None:
    """Requests that have just ended do not count against the replica that still reports them."""
    router = ReplicaRouter(Random(1))
    for name in "ab":
        notify(router, name, busy(0))
    for number in range(16):
        router.sent(short_request(number), ReplicaChoice("a", 0, 0.0), 0.0)
    notify(router, "a", busy(16), now_s=1.0)
    for number in range(16):
        router.began(str(number))
        router.ended(str(number))
    assert spread(router, map(short_request, range(16, 32)), now_s=1.1) == {"a": 8, "b": 8}


def test_an_idle_replica_gets_the_larger_part_of_a_burst() -> None:
    router = ReplicaRouter(Random(1))
    notify(router, "a", busy(4))
    notify(router, "b", busy(0))
    counts = spread(router, map(short_request, range(8)))
    assert counts["b"] > counts["a"]


def test_a_burst_evens_out_the_loads_of_replicas() -> None:
    """Another stream does not cost as much as a token of a prompt."""
    router = ReplicaRouter(Random(1))
    for name, live in (("a", 2), ("b", 6)):
        notify(router, name, busy(live))
    counts = Counter(a=2, b=6) + spread(router, map(short_request, range(16)))
    assert abs(counts["a"] - counts["b"]) <= 2
