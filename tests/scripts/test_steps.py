"""The floor of `scripts/regress.py steps`: what steps read and multiply, and how long that takes at least."""

from __future__ import annotations

import dataclasses

from regressions.roofline import ModelWork, Peaks, Work
from regressions.steps import Situation

from tests.tiny_model import tiny_model_path

PEAKS = Peaks(read_bytes=1000.0, int8_products=2000.0, float_products=500.0)
MODEL = ModelWork(
    body_bytes=100, body_weights=80, output_bytes=30, output_weights=20, cell_bytes=2, products_per_pair=3
)


def test_the_larger_of_reading_and_multiplying_is_the_floor() -> None:
    """Products of both kinds use the same units: their times add up."""
    reads = Work(read_bytes=10, int8_products=2, float_products=1)
    assert (reads.floor_ms(PEAKS), reads.is_held_by_memory(PEAKS)) == (10, True)
    multiplies = Work(read_bytes=1, int8_products=20, float_products=1)
    assert (multiplies.floor_ms(PEAKS), multiplies.is_held_by_memory(PEAKS)) == (12, False)


def test_a_step_reads_weights_once_and_multiplies_them_for_every_token() -> None:
    step = MODEL.step({0: 1, 1: 3}, held={0: 10})
    assert step.read_bytes == 130 + (11 + 3) * 2
    assert step.int8_products == 4 * 80 + 2 * 20, "one token of each sequence is sampled"
    assert step.float_products == (11 + 1 + 2 + 3) * 3


def test_experts_are_read_as_often_as_routers_choose_them() -> None:
    """A fourth of them for each token, evenly."""
    mixture = dataclasses.replace(MODEL, expert_bytes=1024, expert_weights=400, used_share=0.25)
    for tokens, touched in ((1, 256), (2, 448)):
        step, dense = mixture.step({0: tokens}, held={}), MODEL.step({0: tokens}, held={})
        assert step.read_bytes - dense.read_bytes == touched
        assert step.int8_products - dense.int8_products == tokens * 100


def test_a_long_prompt_is_many_steps() -> None:
    situation = Situation("prompt", {0: 600, 1: 1}, context=5, num_holders=1)
    steps = list(situation.steps())
    assert [sum(step.values()) for step in steps] == [256, 256, 89]
    work = situation.work(MODEL)
    assert work.read_bytes == 3 * 130 + 2 * ((5 + 255 + 1) + (5 + 511) + (5 + 600))
    assert work.float_products == 3 * (1 + sum(5 + i + 1 for i in range(600)))


def test_the_header_tells_the_sizes() -> None:
    """2 layers of width 256, 4 heads, 2 of them for keys and values, all in four bytes a weight."""
    found = ModelWork.of(tiny_model_path(), "f16")
    layer = 256 * (256 + 128 + 128 + 256) + 3 * 256 * 512
    assert (found.body_weights, found.output_weights) == (2 * layer, 1024 * 256)
    assert (found.body_bytes, found.output_bytes) == (4 * 2 * layer, 4 * 1024 * 256)
    assert (found.cell_bytes, found.products_per_pair) == (2 * 2 * 2 * 128, 2 * 2 * 256)
