"""Helpers of end-to-end tests: start a server with the tiny model, call it, wait for it."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

TINY = ("--model", str(tiny_model_path()), "--served-model-name", "tiny")


def tiny_server(*options: str, **more: Any) -> ServerProcess:
    return ServerProcess(*TINY, *options, **more)


def sdk(server: ServerProcess, key: str = "none", **more: Any) -> openai.OpenAI:
    """Return an SDK client without retries."""
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, **more)


def async_sdk(server: ServerProcess, key: str = "none", **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, **more)


def num_live(server: ServerProcess) -> int:
    return sum(size["running"] + size["waiting"] for size in server.status()["queue"].values())


@contextmanager
def answering_http(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run an HTTP server in a thread and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever, 0.01)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def own_address() -> str:
    """Return an address of this machine that is not on its loopback."""
    for addresses in psutil.net_if_addrs().values():
        for item in addresses:
            if item.family is socket.AF_INET and not item.address.startswith("127."):
                return item.address
    pytest.skip("this machine has no network")


def attack(
    send: Callable[[int], httpx.Response], number: int, probe: Callable[[], object]
) -> list[httpx.Response]:
    """Send `number` requests, four at a time. A probe beside and after them always has the same result."""
    expected, is_over = probe(), threading.Event()
    with ThreadPoolExecutor(5) as pool:
        probes = pool.submit(lambda: [probe() for _ in iter(is_over.is_set, True)])
        try:
            answers = list(pool.map(send, range(number)))
        finally:
            is_over.set()
    assert [result for result in (*probes.result(), probe()) if result != expected] == []
    return answers


def key_file(path: Path, lines: Mapping[str, str]) -> Path:
    """Write a file of keys whose secrets are their names. `lines` has the other lines of each table."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in lines}
    path.write_text("".join(f'[keys.{name}]\nsha256 = "{digests[name]}"\n{lines[name]}\n' for name in lines))
    return path
