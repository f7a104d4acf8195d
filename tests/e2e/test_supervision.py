"""The real server when a process dies, hangs, or gets a signal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.serving import sdk, tiny_server
from tests.e2e.test_batches import create_batch, jsonl, slow_row, wait_for_rows
from tests.gates import suspended
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def body(max_tokens: int) -> dict[str, object]:
    fields = {"prompt": "x", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    return {**fields, "stream": True, "stream_options": {"include_usage": True}}


@contextmanager
def streaming(server: ServerProcess, max_tokens: int) -> Iterator[tuple[str, Iterator[str]]]:
    """Start a stream; yield its first line and the iterator of the others."""
    url = server.url + "/v1/completions"
    with httpx.stream("POST", url, json=body(max_tokens), timeout=DEADLINE_S) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        assert first.startswith("data: ")
        yield first, lines


def num_tokens(lines: list[str]) -> int:
    """Return the number in the chunk with the usage, which ends the stream."""
    assert lines[-2:] == ["data: [DONE]", ""]
    return json.loads(lines[-4].removeprefix("data: "))["usage"]["completion_tokens"]


def test_a_stopped_engine_is_replaced_and_its_streams_continue() -> None:
    """Killed engines: tests/e2e/test_adapters.py."""
    # With AMX only invariant kernels compute a prompt's tokens as they were computed one by one.
    with tiny_server("--hang-seconds", "2", "--kernels", "invariant") as server:
        engine = server.engine
        with streaming(server, 300) as (first, lines), suspended(engine.pid):
            received = [first, *lines]
        assert num_tokens(received) == 300
        assert not engine.is_running()
        plain = {**body(300), "stream": False, "stream_options": None}
        whole = server.post("/v1/completions", json=plain).json()
        chunks = [json.loads(line.removeprefix("data: ")) for line in received if line.startswith("data: {")]
        text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        assert text == whole["choices"][0]["text"]
        assert "no progress for 2 s" in "".join(server.lines)


@pytest.mark.parametrize("is_stopped", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_engine_ends_with_the_server_even_if_it_hangs(is_stopped: bool, tmp_path: Path) -> None:
    with tiny_server(*(("--cache-file", str(tmp_path / "cache")) if is_stopped else ())) as server:
        engine = server.engine
        with suspended(*([engine.pid] if is_stopped else [])):
            server.process.send_signal(signal.SIGKILL)
            psutil.wait_procs([engine], timeout=DEADLINE_S)
        assert not engine.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_signal_ends_a_server_whose_engine_loads(number: signal.Signals, tmp_path: Path) -> None:
    """The engine reads its cache file, a pipe without a writer, and has a minute to save it."""
    os.mkfifo(tmp_path / "cache")
    server = tiny_server("--cache-file", str(tmp_path / "cache"))
    try:
        server.wait_for(r"(loading) .*: 100 %")
        engine = server.engine
        assert server.stop(number) == (0 if number == signal.SIGTERM else -number)
        psutil.wait_procs([engine], timeout=DEADLINE_S)
        assert not engine.is_running()
        assert "Traceback" not in "".join(server.lines)
    finally:
        server.stop(signal.SIGKILL)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_drains(number: signal.Signals) -> None:
    """New work is refused, all else is answered, and running requests finish."""
    options = ("--drain-seconds", "600", "--batch-concurrency", "2", "--hang-seconds", "0")
    with tiny_server(*options) as server, sdk(server) as client:
        batch = create_batch(client, jsonl([slow_row(number) for number in range(40)]))
        wait_for_rows(client, batch.id, 1)
        with (
            streaming(server, 300) as (_, lines),
            httpx.Client(base_url=server.url, timeout=DEADLINE_S) as http,
        ):
            with suspended(server.engine.pid):
                server.process.send_signal(number)
                wait_until(lambda: http.get("/ready").status_code == 503)
                ready = http.get("/ready")
                assert (ready.json()["status"], ready.headers["retry-after"]) == ("draining", "10")
                assert http.get("/health").status_code == 200
                window = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
                rows = {"file": ("rows.jsonl", jsonl([slow_row(0)] * 5000))}
                again = {**window, "input_file_id": batch.input_file_id}
                for refused, why in (
                    (http.post("/v1/completions", json=body(5)), "draining"),
                    (http.post("/v1/batches", json=again), "shutting down"),
                    (http.post("/v1/files", data={"purpose": "batch"}, files=rows), "shutting down"),
                ):
                    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
                    assert refused.json()["error"]["code"] == "engine_unavailable"
                    assert why in refused.json()["error"]["message"]
                assert [one.id for one in client.batches.list()] == [batch.id]
                assert len(list(client.files.list())) >= 1
                assert client.batches.cancel(batch.id).status == "cancelling"
            assert num_tokens(list(lines)) == 300
        assert server.process.wait(timeout=DEADLINE_S) == 0


@pytest.mark.parametrize(("drain_s", "more_signals"), [("0.5", 0), ("600", 1)])
def test_draining_ends_in_time_or_by_a_second_signal_with_an_error_event(
    drain_s: str, more_signals: int
) -> None:
    with tiny_server("--drain-seconds", drain_s, "--hang-seconds", "0") as server:
        engine = server.engine
        # Suspended, because the stream might end before the signal.
        with streaming(server, 4000) as (_, lines), suspended(engine.pid):
            server.process.send_signal(signal.SIGTERM)
            for _ in range(more_signals):
                wait_until(lambda: server.get("/ready").status_code == 503)
                server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert "shutting down" in rest[-2]
        assert server.process.wait(timeout=DEADLINE_S) == 0
        assert not engine.is_running()
    assert "served 1 requests" in server.lines[-1]
