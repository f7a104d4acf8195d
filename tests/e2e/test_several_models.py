"""Several models in one real server: loaded on demand, unloaded, killed, replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_supervision import eventually
from tests.server_process import ServerProcess, engines_of
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.native, pytest.mark.thorough]

TINY = str(tiny_model_path())
DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"
TWO = ("--model", f"one={TINY}", "--model", f"two={TINY}", "--ctx-size", "1024", "--cache-mb", "8")
QUESTION: dict[str, object] = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "temperature": 0}


@contextmanager
def serving(*options: str) -> Iterator[ServerProcess]:
    """It is up when the default model is loaded."""
    with ServerProcess(*options) as server:
        yield server


def card(server: ServerProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/v1/models/{name}").json()
    return found


def state(server: ServerProcess, name: str) -> str:
    return str(card(server, name)["state"])


def answer(server: ServerProcess, model: str, **fields: object) -> str:
    body = {**QUESTION, "model": model, **fields}
    reply = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def post(server: ServerProcess, path: str) -> httpx.Response:
    return httpx.post(server.url + path, timeout=60)


def num_engines(server: ServerProcess) -> int:
    return len(engines_of(server.process.pid))


def test_a_request_loads_a_model_and_idleness_unloads_it() -> None:
    with serving(*TWO, "--idle-unload", "2") as server:
        assert (state(server, "one"), state(server, "two")) == ("ready", "asleep")
        assert card(server, "two")["meta"]["context_length"] == 1024
        body = {**QUESTION, "model": "two", "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as stream:
            lines = list(stream.iter_lines())
        assert lines[0] == ": model is loading (0 %)"
        assert "data: [DONE]" in lines
        assert answer(server, "one") == answer(server, "two")
        eventually(lambda: num_engines(server) == 0)
        assert httpx.get(server.url + "/ready").status_code == 200
        assert answer(server, "one") == answer(server, "two")


def test_a_kill_of_one_pauses_only_its_own_streams() -> None:
    with serving(*TWO) as server:
        answer(server, "two")
        first, second = engines_of(server.process.pid)
        long = {"max_tokens": 400}
        with ThreadPoolExecutor() as pool:
            told = [pool.submit(answer, server, name, **long) for name in ("one", "two")]
            time.sleep(0.3)
            os.kill(first.pid, signal.SIGKILL)
            texts = [one.result() for one in told]
        assert texts[0] == texts[1]
        assert second.is_running()
        assert server.status()["restarts"] == 1


def test_by_hand() -> None:
    with serving(*TWO) as server:
        assert post(server, "/v1/models/two/load").json()["state"] == "ready"
        assert post(server, "/v1/models/two/load").json()["state"] == "ready"
        assert post(server, "/v1/models/two/unload").json()["state"] == "asleep"
        assert post(server, "/v1/models/two/unload").json()["state"] == "asleep"
        later = post(server, "/v1/models/two/load?wait=false")
        assert (later.status_code, later.json()["state"]) == (202, "loading")
        eventually(lambda: state(server, "two") == "ready")
        unknown = post(server, "/v1/models/three/load")
        assert (unknown.status_code, "There is: one, two." in unknown.text) == (404, True)
        for wrong in ("wait=perhaps", "force=true"):
            assert post(server, f"/v1/models/two/load?{wrong}").status_code == 400
        with httpx.stream(
            "POST", server.url + "/v1/completions", json={**QUESTION, "max_tokens": 900, "stream": True}
        ) as stream:
            lines = stream.iter_lines()  # without a name it would be closed at once, and the stream with it
            next(lines)
            assert post(server, "/v1/models/one/unload").json()["error"]["code"] == "model_in_use"


def test_the_budget_has_room_for_one_at_a_time(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[models.large]\nsource = "{TINY}"\nctx_size = 1000000\n')
    with serving(*TWO, "--memory", "250", "--config", str(config)) as server:
        alone = answer(server, "one")
        for name in ("two", "one", "two"):
            assert answer(server, name) == alone
            assert num_engines(server) == 1
        refused = httpx.post(server.url + "/v1/completions", json={**QUESTION, "model": "large"})
        assert refused.status_code == 503
        assert "the model 'large' needs" in refused.text
        assert card(server, "large")["state"] == "failed"
        by_hand = post(server, "/v1/models/large/load").json()["error"]
        assert by_hand["code"] == "model_does_not_fit"


def test_a_file_that_changed_takes_over_without_a_lost_request(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(TINY, path)
    options = ("--model", f"one={path}", "--model", f"two={TINY}", "--ctx-size", "1024", "--cache-mb", "8")
    with serving(*options) as server:
        wanted, is_over = answer(server, "one"), threading.Event()

        def ask() -> list[str]:
            found = []
            while not is_over.is_set():
                found.append(answer(server, "one"))
            return found

        with ThreadPoolExecutor() as pool:
            clients = [pool.submit(ask) for _ in range(4)]
            for _ in range(2):
                shutil.copy(TINY, tmp_path / "new.gguf")
                (tmp_path / "new.gguf").rename(path)
                assert post(server, "/v1/models/one/load").json()["state"] == "ready"
            time.sleep(0.5)
            is_over.set()
            texts = [text for client in clients for text in client.result()]
        assert set(texts) == {wanted}
        assert "has been loaded anew" in "".join(server.lines)
        eventually(lambda: num_engines(server) == 1)


def test_a_sleeping_model_keeps_up_with_its_file(tmp_path: Path) -> None:
    """The other file has other tokens: a request must not be cut into those of the old one."""
    path = tmp_path / "model.gguf"
    shutil.copy(TINY, path)
    with serving("--model", f"one={TINY}", "--model", f"two={path}", "--cache-mb", "8") as server:
        tokens = {"model": "two", "prompt": "seven stones"}
        before = httpx.post(server.url + "/tokenize", json=tokens).json()["tokens"]
        (tmp_path / "new.gguf").write_text("no model")
        (tmp_path / "new.gguf").rename(path)
        time.sleep(1.5)
        assert httpx.post(server.url + "/tokenize", json=tokens).json()["tokens"] == before
        shutil.copy(DEMO, tmp_path / "new.gguf")
        (tmp_path / "new.gguf").rename(path)
        server.wait_for("(has changed, and was read anew)")
        assert httpx.post(server.url + "/tokenize", json=tokens).json()["tokens"] != before
        assert state(server, "two") == "asleep"
        assert answer(server, "two")


def test_an_only_model_is_replaced_too_and_stays_where_the_new_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(TINY, path)
    with serving("--model", str(path), "--ctx-size", "1024") as server:
        wanted = answer(server, "model")
        (tmp_path / "new.gguf").write_text("no model")
        (tmp_path / "new.gguf").rename(path)
        assert post(server, "/v1/models/model/load").json()["error"]["code"] == "model_not_loaded"
        assert answer(server, "model") == wanted
        shutil.copy(TINY, tmp_path / "new.gguf")
        (tmp_path / "new.gguf").rename(path)
        assert post(server, "/v1/models/model/load").json()["state"] == "ready"
        assert answer(server, "model") == wanted
        assert post(server, "/v1/models/model/unload").json()["state"] == "asleep"
        assert answer(server, "model") == wanted


def test_a_broken_model_is_named_and_the_others_serve(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_text("no model")
    with serving("--model", f"one={TINY}", "--model", f"bad={path}", "--cache-mb", "8") as server:
        answer(server, "one")
        health = server.status()
        assert (health["status"], health["models"]["bad"]["state"]) == ("degraded", "failed")
        refused = httpx.post(server.url + "/v1/completions", json={**QUESTION, "model": "bad"})
        assert (refused.status_code, "not a GGUF file" in refused.text) == (503, True)
        assert post(server, "/v1/models/bad/load").json()["error"]["code"] == "model_not_loaded"
        shutil.copy(TINY, path)
        assert post(server, "/v1/models/bad/load").json()["state"] == "ready"
        assert answer(server, "bad") == answer(server, "one")
        metrics = httpx.get(server.url + "/metrics").text
        assert 'ocs_model_state{model="bad",state="ready"} 1.0' in metrics


def test_a_stream_of_json_lines_of_a_batch_may_name_any_model() -> None:
    rows = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {**QUESTION, "model": name}}
        for name in ("one", "two")
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    with serving(*TWO) as server:
        files = {"file": ("in.jsonl", content)}
        sent = httpx.post(server.url + "/v1/files", files=files, data={"purpose": "batch"}).json()
        asked = {
            "input_file_id": sent["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        batch = httpx.post(server.url + "/v1/batches", json=asked).json()
        url = f"{server.url}/v1/batches/{batch['id']}"
        eventually(lambda: httpx.get(url).json()["status"] == "completed")
        counts = httpx.get(url).json()["request_counts"]
    assert (counts["completed"], counts["failed"]) == (2, 0)
