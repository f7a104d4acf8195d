#!/usr/bin/env python3
"""Measures what it costs the server that somebody watches `GET /v1/events`: output tokens/s with and without.

    .venv/bin/python scripts/events_cost.py [--model smollm2] [--clients 16] [--window-s 10] [--pairs 10]

One server, endless clients of both priorities. Windows with and without a listener alternate, so that a noisy
machine hits both; each pair is compared by itself.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
WARM_UP_S = 10.0


@contextmanager
def server(model: str, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    """Its port, and its process."""
    command = [sys.executable, "-m", "openai_cpu_server", "serve", "--port", "0", "--jobs-db", "none"]
    process = subprocess.Popen(
        [*command, "--model", model, "--calibrate", "never", "--drain-seconds", "0", *options],
        cwd=ROOT,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        log = iter(process.stdout)
        port = next(int(found[1]) for line in log if (found := re.search(r"listening on .*:(\d+)", line)))
        next(line for line in log if "ready: " in line)
        threading.Thread(target=lambda: list(log), daemon=True).start()
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def ask_for_ever(port: int, number: int, is_over: threading.Event) -> None:
    """Every fourth client is interactive."""
    drawn = random.Random(number)
    while not is_over.is_set():
        body = {
            "prompt": f"Story {drawn.random()}. " + "Once upon a time " * drawn.randint(2, 20),
            "max_tokens": drawn.randint(200, 600),
            "ignore_eos": True,
            "priority": "batch" if number % 4 else "interactive",
        }
        with suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            connection.getresponse().read()


class Listener:
    """Reads events as fast as they come, from `begin` to `end`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.num_bytes = 0
        self._connection: HTTPConnection | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._connection = HTTPConnection("127.0.0.1", self._port)
        self._connection.request("GET", "/v1/events")
        self._thread = threading.Thread(
            target=self._read, args=(self._connection.getresponse(),), daemon=True
        )
        self._thread.start()

    def _read(self, answer) -> None:  # type: ignore[no-untyped-def]
        with suppress(OSError, HTTPException, ValueError, AttributeError):
            while piece := answer.read1(65536):
                self.num_bytes += len(piece)

    def end(self) -> None:
        assert self._connection is not None
        assert self._thread is not None
        assert self._connection.sock is not None
        self._connection.sock.shutdown(2)
        self._thread.join()
        self._connection.close()


def sampled(port: int) -> float:
    """Output tokens so far."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    found = re.search(
        r"^ocs_sampled_tokens_total ([\d.e+]+)$", connection.getresponse().read().decode(), re.M
    )
    assert found is not None
    return float(found[1])


def api_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def rate(port: int, process: psutil.Process, seconds: float) -> tuple[float, float]:
    """Output tokens a second, and CPU seconds of the API process a second."""
    began_s, tokens, cpu_s = time.monotonic(), sampled(port), api_cpu_s(process)
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    return (sampled(port) - tokens) / took_s, (api_cpu_s(process) - cpu_s) / took_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    is_over = threading.Event()
    with server(options.model) as (port, process):
        for number in range(options.clients):
            threading.Thread(target=ask_for_ever, args=(port, number, is_over), daemon=True).start()
        time.sleep(WARM_UP_S)
        listener, without, watched = Listener(port), [], []
        for pair in range(options.pairs):
            for is_watched in (False, True) if pair % 2 else (True, False):
                if is_watched:
                    listener.begin()
                    watched.append(rate(port, process, options.window_s))
                    listener.end()
                else:
                    without.append(rate(port, process, options.window_s))
        is_over.set()
    report(without, watched, listener.num_bytes / (options.pairs * options.window_s))


def report(
    without: list[tuple[float, float]], watched: list[tuple[float, float]], bytes_a_second: float
) -> None:
    changes = [100 * (b[0] / a[0] - 1) for a, b in zip(without, watched, strict=True)]
    print(
        f"without a listener: {statistics.median(one[0] for one in without):.2f} tokens/s (median of windows)"
    )
    print(f"with one:           {statistics.median(one[0] for one in watched):.2f} tokens/s")
    spread = f"from {min(changes):+.1f} to {max(changes):+.1f}"
    print(f"change by pair:     {statistics.median(changes):+.2f} % (median; {spread})")
    cpu = [100 * statistics.mean(one[1] for one in some) for some in (without, watched)]
    print(f"API process:        {cpu[0]:.2f} % of a core without, {cpu[1]:.2f} % with")
    print(f"the stream:         {bytes_a_second / 1000:.1f} kB/s")


if __name__ == "__main__":
    main()
