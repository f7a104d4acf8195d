"""Gemma 3 270M from its packages: a base model with windows of 512 tokens and a vocabulary of 262,144."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.slow]  # SmolLM2 is asked each time

CAPITALS = "The capital of Italy is Rome.\nThe capital of Spain is Madrid.\nThe capital of Japan is Tokyo.\n"


@pytest.fixture(scope="module")
def server(gemma3_270m: Path) -> Iterator[ServerProcess]:
    with ServerProcess("--model", "gemma3-270m", "--max-seqs", "4", "--ctx-size", "2048") as server:
        yield server


def completion(server: ServerProcess, prompt: str, max_tokens: int) -> str:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    answer = server.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("Water boils at 100 degrees", " Celsius"),
        ("def fibonacci(n):", "\n    if n == 0:\n        return "),
        (f"{CAPITALS}The capital of France is", " Paris"),
    ],
)
def test_what_it_writes_makes_sense(server: ServerProcess, prompt: str, begins: str) -> None:
    assert completion(server, prompt, 12).startswith(begins)


def test_so_it_does_behind_more_than_a_window(server: ServerProcess) -> None:
    prompt = f"{CAPITALS * 30}The capital of France is"
    assert completion(server, prompt, 4).startswith(" Paris")
