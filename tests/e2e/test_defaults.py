"""Defaults of a model on a real server, from its file to its answers."""

from __future__ import annotations

from pathlib import Path

from tests.llama.odd_models import rewritten
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path


def test_defaults_of_a_file_a_table_and_options_reach_cards_and_answers(tmp_path: Path) -> None:
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 9}
    model = rewritten(tiny_model_path(), tmp_path / "tiny.gguf", metadata)
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[models.tiny]\nsource = "{model}"\ntop_k = 5\n')
    options = ("--config", str(settings), "--temperature", "1.5", "--top-p", "0.7")
    with ServerProcess(*options, "--max-output-tokens", "20") as server:
        card = server.get("/v1/models/tiny").json()["sampling"]
        props = server.get("/props").json()["default_generation_settings"]["params"]
        completion = server.post("/completion", {"prompt": "a", "ignore_eos": True}).json()
        chat = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "seed": 1}
        first, second = (server.post("/v1/chat/completions", chat).json() for _ in range(2))
    assert [card[name] for name in ("temperature", "top_k", "top_p", "min_p")] == [0.5, 5, 0.7, 0.05]
    assert (card["max_output_tokens"], props["n_predict"], props["top_k"]) == (20, 20, 5)
    applied = completion["generation_settings"]
    assert [applied[name] for name in ("temperature", "top_k", "top_p", "n_predict")] == [0.5, 5, 0.7, 20]
    assert (completion["tokens_predicted"], completion["stop_type"]) == (20, "limit")
    assert first["usage"]["completion_tokens"] == 20
    assert first["choices"] == second["choices"]
