"""What several of these tests use."""

import random

import pytest


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20240229)
