#!/usr/bin/env python3
"""Several models in less memory than they take together: mixed traffic, models that come and go, and kills.

    .venv/bin/python scripts/house_soak.py --model a=FILE --model b=FILE --model minilm --memory 8000

Clients ask models drawn at random, streamed and whole, texts and embeddings, while an engine is killed
(kill -9) now and then. The exit code is 1 if an answer is 5xx, cut or lost, or if the engines together ever
take more than the budget, by resident memory (pages of a file that two of them map count twice).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import time
from collections import Counter

import httpx
import psutil
from bench.servers import OUR_COMMAND, Server, ServerFailed, ServerSpec, running

_MIB = 2**20
_LOOK_S = 0.5
_PROMPT_WORDS = 40
_OUTPUT_TOKENS = 24
_COUNTED = re.compile(r"^(ocs_model_(?:un)?loads_total\{.*\}) (\S+)$", re.MULTILINE)


def main() -> int:
    args = _arguments()
    names = [spec.partition("=")[0] for spec in args.model]
    models = [part for spec in args.model for part in ("--model", spec)]
    options = ("--memory", str(args.memory), "--jobs-db", "none", "--calibrate", "never", *args.option)
    command = (*OUR_COMMAND, *models, "--port", "{port}", *options)
    try:
        with running(ServerSpec("ours", command, ready="/health"), []) as server:
            return asyncio.run(_Soak(server, names, args).run())
    except ServerFailed as error:
        print(error, file=sys.stderr)
        return 1


class _Soak:
    def __init__(self, server: Server, names: list[str], args: argparse.Namespace) -> None:
        self._server = server
        self._args = args
        self._names = names
        self._chance = random.Random(args.seed)
        self._kinds: dict[str, str] = {}
        self._answered: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        self._most_bytes = 0
        self._kills = 0

    async def run(self) -> int:
        """The exit code."""
        base = f"http://127.0.0.1:{self._server.port}"
        limits = httpx.Limits(max_connections=self._args.clients + 1)
        async with httpx.AsyncClient(base_url=base, timeout=300, limits=limits) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            self._kinds = {model["id"]: model["kind"] for model in listed}
            end_s = time.monotonic() + 60 * self._args.minutes
            others = [asyncio.create_task(self._watch_memory()), asyncio.create_task(self._kill_on())]
            await asyncio.gather(*(self._ask_until(http, end_s) for _ in range(self._args.clients)))
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            metrics = (await http.get("/metrics")).text
        return self._told(metrics)

    def _told(self, metrics: str) -> int:
        for line, count in _COUNTED.findall(metrics):
            print(f"{line} {count}")
        print("answered: " + ", ".join(f"{name} {count}" for name, count in self._answered.items()))
        print(f"kills: {self._kills}")
        print(f"engines' resident memory at most {self._most_bytes / _MIB:,.0f} of {self._args.memory:,} MiB")
        for what, count in self._wrong.items():
            print(f"WRONG {count} times: {what}")
        is_good = not self._wrong and self._most_bytes <= self._args.memory * _MIB
        print("good" if is_good else "NOT GOOD")
        return 0 if is_good else 1

    async def _ask_until(self, http: httpx.AsyncClient, end_s: float) -> None:
        while time.monotonic() < end_s:
            name = self._chance.choice(self._names)
            try:
                await self._ask(http, name)
                self._answered[name] += 1
            except httpx.HTTPError as error:
                self._wrong[f"{name}: {type(error).__name__} {error}"] += 1
            await asyncio.sleep(self._chance.expovariate(1 / self._args.pause))

    async def _ask(self, http: httpx.AsyncClient, name: str) -> None:
        words = " ".join(
            self._chance.choice(("tea", "river", "stone", "seven")) for _ in range(_PROMPT_WORDS)
        )
        if self._kinds[name] == "embeds":
            answer = await http.post("/v1/embeddings", json={"model": name, "input": [words, "tea"]})
            self._check(name, answer, whole=answer.status_code == 200 and len(answer.json()["data"]) == 2)
            return
        is_stream = self._chance.random() < 0.5
        body = {"model": name, "prompt": words, "max_tokens": _OUTPUT_TOKENS, "ignore_eos": True}
        if not is_stream:
            answer = await http.post("/v1/completions", json=body)
            told = answer.json().get("usage", {}) if answer.status_code == 200 else {}
            self._check(name, answer, whole=told.get("completion_tokens") == _OUTPUT_TOKENS)
            return
        async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            text = "".join([line async for line in answer.aiter_lines()])
            self._check(name, answer, whole=text.endswith("data: [DONE]") and '"length"' in text)

    def _check(self, name: str, answer: httpx.Response, *, whole: bool) -> None:
        if answer.status_code != 200:
            self._wrong[f"{name}: status {answer.status_code}"] += 1
        elif not whole:
            self._wrong[f"{name}: not whole"] += 1

    async def _watch_memory(self) -> None:
        while True:
            self._most_bytes = max(self._most_bytes, sum(map(_resident, self._engines())))
            await asyncio.sleep(_LOOK_S)

    async def _kill_on(self) -> None:
        while True:
            await asyncio.sleep(self._args.kill_every * self._chance.uniform(0.5, 1.5))
            engines = self._engines()
            if engines:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._chance.choice(engines).kill()
                    self._kills += 1

    def _engines(self) -> list[psutil.Process]:
        children = psutil.Process(self._server.pid).children()
        return [child for child in children if "openai_cpu_server.reader.process" not in child.cmdline()]


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", required=True, metavar="[NAME=]SPEC")
    parser.add_argument("--memory", type=int, default=8000, help="MiB for all models (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between a client's requests")
    parser.add_argument("--kill-every", type=float, default=45.0, help="seconds, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], help="for the server: --ctx-size=32768")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
