"""Vectors as bytes of an answer: nothing of a float32 is lost."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from openai_cpu_server.api.pooling.render import as_base64, as_numbers, checked, normalised
from openai_cpu_server.errors import GenerationFailed

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-38, 1e-45, 3.4e38, 1 / 3, 0.1, 123456789.0, 5e-7, 9.9999999e-1]


def random_rows() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    generator = np.random.default_rng(7)
    exponents = generator.integers(-12, 4, (200, 16))
    return (generator.standard_normal((200, 16)) * 10.0**exponents).astype(np.float32)


@pytest.mark.parametrize("rows", [np.array([SPECIAL], np.float32), random_rows()])
def test_json_numbers_mean_the_same_float32(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    read = np.array([json.loads(text) for text in as_numbers(rows)], np.float32)
    small = np.abs(rows) < 1e-13  # these have more decimals than are written
    assert (read[~small] == rows[~small]).all()
    assert np.abs(read[small] - rows[small]).max(initial=0) < 1e-22


def test_ordinary_numbers_are_short() -> None:
    (text,) = as_numbers(np.array([[0.1, 1 / 3, -0.053710941]], np.float32))
    assert text == b"[0.100000001,0.333333343,-0.0537109412]"


def test_base64_is_little_endian_float32() -> None:
    rows = np.array([[1.5, -2.0], [0.0, 3.0]], np.float32)
    texts = [json.loads(text) for text in as_base64(rows)]
    assert texts[0] == "AADAPwAAAMA="
    assert [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in texts] == rows.tolist()


def test_rows_get_length_one_but_zeros_stay() -> None:
    unit = normalised(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    assert unit.dtype == np.float32
    assert unit.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(GenerationFailed):
        checked(np.array([[1.0, wrong]], np.float32))
