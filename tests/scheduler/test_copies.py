"""Copies have a price of their own."""

from __future__ import annotations

from openai_cpu_server.contract.step import Close, Restore, Save
from openai_cpu_server.scheduler.copies import CopyPrice

VERBS = (Save(0, 0, 64, 1), Restore(1, 2, 0, 36), Close(0))


def test_the_price_follows_what_copies_take() -> None:
    price = CopyPrice()
    for _ in range(100):
        price.learn(VERBS, 50.0)
    assert abs(price.predict_ms(VERBS) - 50.0) < 0.1


def test_verbs_that_copy_nothing_cost_and_teach_nothing() -> None:
    price = CopyPrice()
    before = price.predict_ms(VERBS)
    price.learn((Close(0),), 1000.0)
    assert price.predict_ms(VERBS) == before
    assert price.predict_ms((Close(0),)) == 0.0
