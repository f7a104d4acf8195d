"""Adapters on the real server with the tiny model: together and alone, across a crash, and loaded later.

Replacement under load and refused adapters: tests/engine_client/test_adapters.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.adapters import make_adapter
from tests.e2e.serving import num_live, sdk, tiny_server
from tests.gates import suspended
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

NAMES = ("tiny", "tiny:one", "tiny:two")
PROMPT = "The brown fox"
"""At each of 80 tokens the two best differ by at least 0.01, with every adapter. Steps of other sizes round
differently."""


def test_adapters_answer_together_as_alone_and_survive_a_killed_engine(tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    folder.mkdir()
    paths = [make_adapter(folder / f"{seed}.gguf", "--seed", str(seed)) for seed in range(3)]
    options = ("--adapter", f"one={paths[0]}", "--adapter", f"tiny/two={paths[1]}@0.8", "--threads", "1")
    with (
        tiny_server("--kernels", "invariant", *options, "--adapter-dir", str(folder)) as server,
        sdk(server, timeout=DEADLINE_S) as client,
        ThreadPoolExecutor(9) as pool,
    ):

        def text(model: str) -> str:
            params = {"model": model, "prompt": PROMPT, "max_tokens": 80, "temperature": 0}
            answer = client.completions.create(**params, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
            assert answer.choices[0].finish_reason == "length"
            return str(answer.choices[0].text)

        alone = {name: text(name) for name in NAMES}
        assert len(set(alone.values())) == 3
        with suspended(server.engine.pid):
            futures = [(name, pool.submit(text, name)) for name in NAMES * 3]
            wait_until(lambda: num_live(server) == 9)
            server.engine.kill()
        assert all(future.result() == alone[name] for name, future in futures)
        status = server.status()
        assert (status["restarts"], status["last_restart"]["cause"]) == (1, "SIGKILL")
        listed = {card.id: card.model_dump()["parent"] for card in client.models.list()}
        assert listed == {"tiny": None, "tiny:one": "tiny", "tiny:two": "tiny"}
        body = {"name": "new", "path": "2.gguf"}
        assert server.post("/v1/adapters", json=body).status_code == 200
        assert text("tiny:new") not in alone.values()
