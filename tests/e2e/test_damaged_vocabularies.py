"""A damaged vocabulary costs its own model only: at the start, beside a good model, on a reload, and while
the model sleeps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import gguf
import pytest

from tests import warm
from tests.e2e.test_several_models import answer, replace, state
from tests.llama.odd_models import rewritten, with_vocabulary
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

KEY = "tokenizer.ggml."


def array(name: str) -> list[object]:
    return gguf.GGUFReader(tiny_model_path()).fields[KEY + name].contents()


def damage(name: str, target: Path) -> Path:
    source, tokens, kinds = tiny_model_path(), array("tokens"), array("token_type")
    match name:
        case "a token twice":
            tokens[600] = tokens[601]
            return with_vocabulary(source, target, tokens=tokens)
        case "no bytes":
            for index, token in enumerate(tokens):
                if str(token).startswith("<0x"):
                    tokens[index], kinds[index] = f"word{index}", int(gguf.TokenType.NORMAL)
            return with_vocabulary(source, target, tokens=tokens, token_type=kinds)
        case "few kinds":
            return with_vocabulary(source, target, token_type=kinds[:10])
        case "few scores":
            return with_vocabulary(source, target, scores=array("scores")[:10])
        case "no tokens":
            return with_vocabulary(source, target, tokens=None)
        case "one token":
            return with_vocabulary(source, target, tokens=["a"], scores=[0.0], token_type=[1])
        case _:
            return rewritten(source, target, {KEY + "model": name})


FATAL = ("a token twice", "no bytes")
"""Damages at which llama.cpp ends its process, at once or at a text."""
OTHERS = ("few kinds", "few scores", "no tokens", "one token", "gpt2", "nobody")
GOOD = ("--model", f"good={tiny_model_path()}")
MOSTLY_SLOW = [FATAL[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FATAL[1:])]


def check_replies(server: ServerProcess, model: str) -> None:
    """Expect an answer or a refusal for any text, also for odd ones."""
    for prompt in ("Hello", "\u00e9", "\U0001f600", "a" * 5000):
        body = {"model": model, "prompt": prompt, "max_tokens": 2}
        reply = server.post("/v1/completions", json=body)
        assert reply.status_code in (200, 400, 503), reply.text
        tokens = server.post("/tokenize", json={"model": model, "prompt": prompt})
        assert tokens.status_code in (200, 400, 503), tokens.text


@pytest.mark.parametrize(
    "name", [*MOSTLY_SLOW, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_a_damaged_vocabulary_is_one_line_alone_and_spares_a_good_model(name: str, tmp_path: Path) -> None:
    path = damage(name, tmp_path / "bad.gguf")
    if name in FATAL:
        done = warm.run("serve", "--model", str(path), "--port", "0", "--jobs-db", "none")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "is damaged" in done.stderr
    with ServerProcess(*GOOD, "--model", f"bad={path}") as server:
        check_replies(server, "bad")
        assert answer(server, "good")
        assert (state(server, "bad") == "failed") >= (name in FATAL)
        assert server.status()["restarts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_a_vocabulary_is_damaged_while_its_model_sleeps_and_before_a_reload(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    shutil.copy(tiny_model_path(), path)
    with ServerProcess(*GOOD, "--model", f"bad={path}") as server:
        assert state(server, "bad") == "asleep"
        damage(name, tmp_path / "new.gguf").replace(path)
        os.utime(path)
        wait_until(lambda: any("cannot be read" in line for line in server.lines))
        assert answer(server, "good")
        assert server.post("/v1/models/bad/load").status_code == 503
        assert answer(server, "good")
        replace(path, tiny_model_path())
        assert server.post("/v1/models/bad/load").status_code == 200
        damage(name, tmp_path / "new.gguf").replace(path)
        assert server.post("/v1/models/bad/load?reload=true").status_code == 503
        assert answer(server, "bad")  # by the model that was loaded before
        assert server.post("/v1/models/bad/unload").status_code == 200
        os.truncate(path, 1000)
        check_replies(server, "bad")
        assert answer(server, "good")
