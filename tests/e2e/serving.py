"""What the end-to-end tests do with a server: start one of the tiny model, speak to it, wait for it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

TINY = ("--model", str(tiny_model_path()), "--served-model-name", "tiny")


def tiny_server(*options: str, **more: Any) -> ServerProcess:
    return ServerProcess(*TINY, *options, **more)


def sdk(server: ServerProcess, key: str = "none", **more: Any) -> openai.OpenAI:
    """It never tries again."""
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, **more)


def async_sdk(server: ServerProcess, key: str = "none", **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, **more)


def num_live(server: ServerProcess) -> int:
    return sum(size["running"] + size["waiting"] for size in server.status()["queue"].values())


def attack(
    send: Callable[[int], httpx.Response], number: int, beside: Callable[[], object]
) -> list[httpx.Response]:
    """Send so many, four at a time. Others, who ask beside them and behind them, get the same answers."""
    usual, is_over = beside(), threading.Event()
    with ThreadPoolExecutor(5) as pool:
        others = pool.submit(lambda: [beside() for _ in iter(is_over.is_set, True)])
        try:
            answers = list(pool.map(send, range(number)))
        finally:
            is_over.set()
    assert [one for one in (*others.result(), beside()) if one != usual] == []
    return answers


def key_file(path: Path, lines: Mapping[str, str]) -> Path:
    """A file of keys that are spelt as they are named, with what stands in the table of each."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in lines}
    path.write_text("".join(f'[keys.{name}]\nsha256 = "{digests[name]}"\n{lines[name]}\n' for name in lines))
    return path
