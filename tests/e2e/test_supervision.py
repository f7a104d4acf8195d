"""The real server when something dies, hangs, or is told to end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.serving import sdk, tiny_server
from tests.e2e.test_batches import begin, jsonl, slow_row, until_some_are_done
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def body(max_tokens: int) -> dict[str, object]:
    fields = {"prompt": "x", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    return {**fields, "stream": True, "stream_options": {"include_usage": True}}


@contextmanager
def streaming(server: ServerProcess, max_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of a stream whose first has come."""
    url = server.url + "/v1/completions"
    with httpx.stream("POST", url, json=body(max_tokens), timeout=DEADLINE_S) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def num_tokens(lines: list[str]) -> int:
    """As the chunk with the usage says, which ends the stream."""
    assert lines[-2:] == ["data: [DONE]", ""]
    tokens = json.loads(lines[-4].removeprefix("data: "))["usage"]["completion_tokens"]
    assert isinstance(tokens, int)
    return tokens


def left(server: ServerProcess, max_tokens: int) -> list[str]:
    """The first lines of a stream that goes on without this client."""
    headers = {"x-conversation-id": "left"}
    asked = {"headers": headers, "json": body(max_tokens), "timeout": 60}
    with httpx.stream("POST", server.url + "/v1/completions", **asked) as stream:
        lines = stream.iter_lines()
        return [next(lines) for _ in range(6)]


def taken_up(server: ServerProcess, heard: list[str]) -> list[str]:
    """The lines behind the last event that was heard whole."""
    last = max(ids_of(heard))
    url = server.url + "/v1/chat/completions/left/stream"
    rest = httpx.get(url, headers={"last-event-id": str(last)}, timeout=DEADLINE_S).text
    known = heard[: heard.index("", heard.index(f"id: {last}")) + 1]
    return [line for line in [*known, *rest.splitlines()] if not line.startswith(":")]


def ids_of(lines: list[str]) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]


def text_of(lines: list[str]) -> str:
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_a_stopped_engine_is_replaced() -> None:
    """Whoever has left a stream meanwhile takes it up again."""
    with tiny_server("--hang-seconds", "2") as server:
        engine = server.engine
        heard = left(server, 300)
        with streaming(server, 300) as lines:
            engine.suspend()
            listened = list(lines)
            assert num_tokens(listened) == 300
        assert not engine.is_running()
        told = taken_up(server, heard)
        assert ids_of(told) == [*range(len(ids_of(told)))]
        assert num_tokens([line for line in told if not line.startswith("id: ")]) == 300
        whole = httpx.post(
            server.url + "/v1/completions", json={**body(300), "stream": False, "stream_options": None}
        )
        assert text_of(told) == whole.json()["choices"][0]["text"]
        assert "no progress for 2 s" in "".join(server.lines)


@pytest.mark.slow
def test_after_five_crashes_in_a_minute_it_is_not_ready_says_why_and_comes_back() -> None:
    with tiny_server() as server:
        for _ in range(5):
            os.kill(server.engine.pid, signal.SIGSEGV)
            wait_until(lambda: httpx.get(server.url + "/ready").status_code == 503)
            wait_until(lambda: server.status()["status"] in ("ready", "failed"))
        for _ in range(2):
            refused = httpx.get(server.url + "/ready")
            assert refused.status_code == 503
            assert "5 crashes within a minute" in refused.text
            assert "SIGSEGV" in refused.json()["reason"]
            time.sleep(1)
        assert httpx.get(server.url + "/health").status_code == 200
        answer = httpx.post(server.url + "/v1/completions", json=body(5))
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"
        assert "retry-after" in answer.headers
        wait_until(lambda: httpx.get(server.url + "/ready").status_code == 200)
        assert httpx.post(server.url + "/v1/completions", json=body(5)).status_code == 200


def test_an_engine_that_cannot_start_again_is_given_up_with_its_own_words(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny_model_path().read_bytes())
    with ServerProcess("--model", str(model)) as server:
        model.unlink()
        os.kill(server.engine.pid, signal.SIGKILL)
        wait_until(lambda: server.status()["status"] == "failed")
        refused = httpx.get(server.url + "/ready")
        assert refused.status_code == 503
        assert re.match(r"5 (crashes within a minute|starts in a row that failed)", refused.json()["reason"])
        assert "model.gguf" in refused.json()["reason"]


@pytest.mark.parametrize("has_cache_file", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_engine_goes_with_the_server_even_if_it_hangs(
    is_stopped: bool, has_cache_file: bool, tmp_path: Path
) -> None:
    cache = ("--cache-file", str(tmp_path / "cache")) if has_cache_file else ()
    with tiny_server(*cache) as server:
        engine = server.engine
        if is_stopped:
            engine.suspend()
        server.process.send_signal(signal.SIGKILL)
        psutil.wait_procs([engine], timeout=DEADLINE_S)
        assert not engine.is_running()


@contextmanager
def hung_in_load(cache: Path) -> Iterator[ServerProcess]:
    """Its engine reads its cache file, a pipe that nobody writes to."""
    os.mkfifo(cache)
    server = tiny_server("--cache-file", str(cache))
    try:
        server.wait_for(r"(loading) .*: 100 %")
        yield server
    finally:
        server.stop(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_signal_ends_a_server_whose_engine_loads(number: signal.Signals, tmp_path: Path) -> None:
    """Although an engine with a cache file has a minute to save it, and reads where nobody writes."""
    with hung_in_load(tmp_path / "cache") as server:
        engine = server.engine
        assert server.stop(number) == (0 if number == signal.SIGTERM else -number)
        psutil.wait_procs([engine], timeout=DEADLINE_S)
        assert not engine.is_running()


def test_a_signal_drains() -> None:
    with tiny_server("--drain-seconds", "600", "--max-seqs", "1") as server:
        with streaming(server, 300) as lines, httpx.Client(base_url=server.url, timeout=DEADLINE_S) as http:
            server.engine.suspend()
            server.process.send_signal(signal.SIGINT)
            wait_until(lambda: http.get("/ready").status_code == 503)
            assert http.get("/ready").json()["status"] == "draining"
            assert http.get("/health").status_code == 200
            refused = http.post("/v1/completions", json=body(5))
            assert refused.status_code == 503
            told = http.get("/ready").headers["retry-after"]
            assert refused.headers["retry-after"] == told == "10"
            assert "draining" in refused.json()["error"]["message"]
            server.engine.resume()
            assert num_tokens(list(lines)) == 300
        assert server.process.wait(timeout=DEADLINE_S) == 0


def test_while_it_drains_no_batch_and_no_file_is_taken_and_all_else_is_told() -> None:
    options = ("--drain-seconds", "600", "--batch-concurrency", "2")
    with tiny_server(*options) as server, sdk(server) as client:
        batch = begin(client, jsonl([slow_row(number) for number in range(40)]))
        until_some_are_done(client, batch.id, 1)
        with streaming(server, 300) as lines:
            server.engine.suspend()
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(server.url + "/ready").status_code == 503)
            new = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
            form = {"purpose": "batch"}
            rows = {"file": ("rows.jsonl", jsonl([slow_row(0)] * 5000))}
            for refused in (
                httpx.post(server.url + "/v1/batches", json={**new, "input_file_id": batch.input_file_id}),
                httpx.post(server.url + "/v1/files", data=form, files=rows),
            ):
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) > 0
                assert refused.json()["error"]["code"] == "engine_unavailable"
                assert "about to end" in refused.json()["error"]["message"]
            assert client.batches.retrieve(batch.id).status == "in_progress"
            assert [one.id for one in client.batches.list()] == [batch.id]
            assert len(list(client.files.list())) >= 1
            assert client.batches.cancel(batch.id).status == "cancelling"
            server.engine.resume()
            assert num_tokens(list(lines)) == 300
        assert server.process.wait(timeout=DEADLINE_S) == 0


@pytest.mark.slow
def test_what_ends_during_a_drain_is_in_the_book_though_the_server_is_killed_then(tmp_path: Path) -> None:
    """The book is written every 5 seconds."""
    path = tmp_path / "jobs.db"
    with tiny_server("--jobs-db", str(path), "--drain-seconds", "600") as server:
        with streaming(server, 4000), streaming(server, 100) as short:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(server.url + "/ready").status_code == 503)
            assert num_tokens(list(short)) == 100
            server.engine.suspend()  # the other one holds the drain up
            wait_until(lambda: used(path) == (1, 100))
            assert server.process.poll() is None
            server.stop(signal.SIGKILL)
        assert used(path) == (1, 100)


def used(path: Path) -> tuple[int, int]:
    """Requests and output tokens in the book."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        sums = "SELECT coalesce(sum(requests), 0), coalesce(sum(output_tokens), 0) FROM usage"
        requests, tokens = connection.execute(sums).fetchone()
        return int(requests), int(tokens)


@pytest.mark.parametrize(("drain_s", "more_signals"), [("0.5", 0), ("600", 1)])
def test_draining_ends_in_time_or_by_a_second_signal_with_an_error_event(
    drain_s: str, more_signals: int
) -> None:
    with tiny_server("--drain-seconds", drain_s) as server:
        engine = server.engine
        with streaming(server, 4000) as lines:
            server.process.send_signal(signal.SIGTERM)
            for _ in range(more_signals):
                wait_until(lambda: httpx.get(server.url + "/ready").status_code == 503)
                server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert "shutting down" in rest[-2]
        assert server.process.wait(timeout=DEADLINE_S) == 0
        assert not engine.is_running()


@pytest.mark.slow
def test_signals_to_the_whole_group_drain_too() -> None:
    """Ctrl-C, and service managers: the engine gets them as well, and has to stay until the end."""
    with tiny_server("--drain-seconds", "600") as server:
        with streaming(server, 300) as lines:
            for process in (server.engine, psutil.Process(server.process.pid)):
                process.send_signal(signal.SIGTERM)
            assert num_tokens(list(lines)) == 300
        assert server.process.wait(timeout=DEADLINE_S) == 0
