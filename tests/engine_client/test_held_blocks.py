"""What routers that ask now and then are told of the prompts that an engine holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.replica import HeldUpdate, PrefixNews
from openai_cpu_server.engine_client.subscribers import CachedBlocks


def test_all_at_first_and_then_what_has_changed() -> None:
    held = CachedBlocks()
    held.heard(PrefixNews(saved=(1, 2)))
    first = held.since(None)
    assert (first.is_whole, sorted(first.saved)) == (True, [1, 2])
    held.heard(PrefixNews(saved=(3,), dropped=(1,)))
    held.heard(PrefixNews(saved=(1,), dropped=(2,)))
    assert held.since(first.version) == HeldUpdate(version=first.version + 2, saved=(1, 3), dropped=(2,))
    assert held.since(first.version + 2) == HeldUpdate(version=first.version + 2)


def test_all_again_after_a_new_process_and_for_those_who_missed_too_much() -> None:
    held = CachedBlocks()
    for number in range(400):
        held.heard(PrefixNews(saved=(number,)))
    assert len(held.since(0).saved) == 400
    assert held.since(0).is_whole
    held.clear()
    assert held.since(400) == HeldUpdate(version=401, is_whole=True)
    assert held.since(9999).is_whole, "of another engine"


_NEWS = st.builds(
    PrefixNews,
    saved=st.lists(st.integers(0, 9)).map(tuple),
    dropped=st.lists(st.integers(0, 9)).map(tuple),
)


@given(st.lists(st.tuples(_NEWS, st.booleans(), st.booleans())))
def test_whoever_follows_knows_the_same(story: list[tuple[PrefixNews, bool, bool]]) -> None:
    held, known, version = CachedBlocks(), set[int](), None
    for news, dies, asks in story:
        held.heard(news)
        if dies:
            held.clear()
        if asks:
            update = held.since(version)
            version = update.version
            known = (set() if update.is_whole else known - set(update.dropped)) | set(update.saved)
            assert known == set(held.since(None).saved)
