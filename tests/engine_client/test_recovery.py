"""Order in which requests return to a new engine, and verdicts on them. An engine is a list of ids here."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.engine_client.culprits import OutsideRequests
from openai_cpu_server.engine_client.deaths import DeathKind
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from tests.scheduler.driver import request

FAULT, HANG, KILL = DeathKind.FAULT, DeathKind.HANG, DeathKind.KILL
KINDS = {"": FAULT, "f": FAULT, "h": HANG, "k": KILL, "m": DeathKind.MEMORY}
INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


class Engine:
    """The client's bookkeeping, with an engine that computes all its requests at once."""

    def __init__(self, names: str = "") -> None:
        self.live = AcceptedRequests()
        self.outside = OutsideRequests(self.live)
        self.ids: list[str] = []
        for name in names:
            self.add(name, Priority(name.isupper()))

    def add(self, name: str, priority: Priority = INTERACTIVE) -> None:
        one = request(name, priority=priority)
        generation = GenerationAnswer([one], cancel=lambda _: None, clock=lambda: 0.0)
        live = AcceptedRequest(one, generation, 0.0)
        self.live.add(live)
        self.outside.add(live)
        self.send()

    def forget(self, name: str) -> None:
        self.live.remove(name)
        self.outside.remove(name)

    def send(self) -> None:
        self.ids += [live.request.id for live in self.outside.due()]

    def step(self, *advanced: str) -> None:
        self.outside.computing(tuple(self.ids))
        self.advance(advanced or tuple(self.ids))

    def advance(self, names: Iterable[str]) -> None:
        for name in names:
            self.outside.advanced(self.live.get(name))
        self.send()

    def follow(self, event: str) -> None:
        sign, names = event[0], event[1:]
        if sign in "!~*":
            cause, _, blamed = names.partition(">")
            self._die(sign, cause.rstrip("?"), loads="?" in cause, blamed=list(blamed))
        elif sign == ".":
            self.step(*names)
        elif sign == "-":
            self.ids.remove(names)
            self.forget(names)
            self.send()
        elif sign == "=":
            assert self.ids == list(names)
        else:
            for name in event:
                self.add(name, Priority(name.isupper()))

    def _die(self, sign: str, cause: str, *, loads: bool, blamed: list[str]) -> None:
        handled = cause if sign == "*" else ""
        if sign != "~":
            self.outside.computing(tuple(name for name in self.ids if name != handled))
        if handled:
            self.outside.handling(handled)
        if loads:
            self.outside.crashed(FAULT)
        kind = KILL if loads else FAULT if handled else KINDS[cause]
        assert self.die(kind) == blamed

    def die(self, kind: DeathKind) -> list[str]:
        """Send the due requests to a new engine, and return the guilty ones."""
        self.verdict = self.outside.crashed(kind)
        guilty = [live.request.id for live in self.verdict.guilty]
        for name in guilty:
            self.forget(name)
        self.ids = []
        self.send()
        return guilty


STORIES = {
    "one half goes back after a fault, and a newcomer comes beside the other": (
        "abcd . ! =cd n =cd .d =cd .c =cdbn .b =cdbna"),
    "interactive suspects go before batch work, and newcomers do not wait for it": (
        "ABCDEFGHIJKLMNOP i . ! =i -i =IJKLMNOP Q =IJKLMNOP n =IJKLMNOPn"),
    "a newcomer that is killed beside a trial is suspected after those on trial": (
        "abcdefgh . ! . p =efghcdp ! =d . .c =dcp ! =p !>p =abcdefgh"),
    "a request that was handled at the death is tried alone before all others": "ab . P *P n =P *P>P =abn",
    "a request that was handled by chance is cleared": "pa . b *b . .a =bap ! !>p",
    "a handled request is tried alone even if the next engine dies loading": "ab . P *P? n =P",
    "a death while the next engine loads changes nothing": "abcd . !? =cd",
    "no request is sentenced for another in the same step": "pab . ! =ab .b .a =abp ! =p !>p",
    "a token between clears": "a" + 5 * " ! .",
    "a suspect that leaves makes room for the next": "ab ! =b -b =a",
    "a hang outside of steps accuses the requests of the engine": "a ~h ~h>a",
    **{f"the newcomer is tried first and fails after two, {kind}": f"ab . p !{kind} =p !{kind}>p =ab"
       for kind in ("f", "h")},
    **{f"the newcomer fails after three, {kind}": f"ab . p !{kind} =p !{kind} =p !{kind}>p =ab"
       for kind in ("k", "m")},
    **{f"kills from outside accuse no request with progress, {kind}": "abc" + 200 * f" . !{kind} =abc"
       for kind in ("k", "m")},
}  # fmt: skip
"""`ab`: a and b are submitted (a capital is batch work). `-a`: a leaves. `.`: all requests, or the named
ones, gain a token in a step. `=`: the engine has these requests. The engine dies in a step (`!`), outside of
one (`~`) or while it handles a request (`*p`). The cause is a fault, hang, kill or lack of memory. With `?`
the next engine dies too while it loads. `>p`: p is to blame; without it no request is."""


@pytest.mark.parametrize("name", STORIES)
def test_stories(name: str) -> None:
    engine = Engine()
    for event in STORIES[name].split():
        engine.follow(event)


def test_random_kills_fail_no_request() -> None:
    chance = random.Random(7)
    engine = Engine("abcdefgh")
    for number in range(2000):
        for _ in range(chance.choice((0, 0, 1, 2, 5))):
            engine.step(*chance.sample(engine.ids, chance.randint(1, len(engine.ids))))
        if number % 3:
            engine.step(engine.ids[0])  # never three kills in a row before a request on trial gets a token
        engine.follow("~k" if chance.random() < 0.2 else "!k")
    assert len(engine.live) == 8


def test_the_outside_holds_all_requests_without_a_live_engine() -> None:
    engine = Engine()
    assert engine.outside.holds_all
    engine.add("a")
    assert not engine.outside.holds_all
    engine.outside.crashed(FAULT)
    assert engine.outside.holds_all


CALLS = st.tuples(
    st.sampled_from([INTERACTIVE, BATCH]),
    st.one_of(st.none(), st.none(), st.integers(0, 2)),
    st.integers(0, 20),
)  # priority; None, or number of tokens before it kills; round of its arrival


@given(
    calls=st.lists(CALLS, min_size=1, max_size=40), kind=st.sampled_from([FAULT, KILL]), chance=st.randoms()
)
def test_every_killer_fails_alone_and_soon(
    calls: list[tuple[Priority, int | None, int]], kind: DeathKind, chance: random.Random
) -> None:
    """Any requests may be killers. Each step computes some of the engine's requests."""
    engine = Engine()
    tokens: Counter[str] = Counter()
    deadly = {f"r{i}": after for i, (_, after, _) in enumerate(calls) if after is not None}
    failed: list[str] = []
    num_deaths = num_counted = round_number = 0
    while round_number <= 20 or len(failed) < len(deadly) or len(engine.ids) < len(engine.live):
        for i, (priority, _, comes) in enumerate(calls):
            if comes == round_number:
                engine.add(f"r{i}", priority)
        round_number += 1
        computed = [one for one in engine.ids if chance.random() < 0.8]
        engine.outside.computing(tuple(computed))
        if any(tokens[one] >= deadly.get(one, math.inf) for one in computed):
            failed += engine.die(kind)
            num_deaths += 1
            num_counted += not engine.verdict.is_closer
        elif computed:
            engine.advance(computed)
            tokens.update(computed)
    assert sorted(failed) == sorted(deadly)
    bound = math.ceil(math.log2(len(calls))) + 5
    assert num_deaths <= bound * len(deadly)
    assert num_counted <= 5 * len(deadly)
