#!/usr/bin/env python3
"""After a minute of full load by batch work, how long do people wait for their first token?

    scripts/priority_story.py [--batch 400] [--tokens 900] [--from-s 65] [--people 20] [--picture FILE.svg]
                              [-- SERVE OPTIONS]

Starts the server with the demo model and `--max-seqs 8`, sends all batch requests at once, then an
interactive one each second. Prints the worst and the median time to their first token. The picture shows who
was in each step while the first people came.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import statistics
import sys
import time
from pathlib import Path

import httpx
from bench.step_picture import Person, step_picture
from bench.timeline import StepLog

_ROOT = Path(__file__).resolve().parent.parent
_SERVE = ("serve", "--model", "demo", "--port", "0", "--jobs-db", "none", "--max-seqs", "8")
_SHOWS_STEPS = ("--log-level", "debug", "--log-format", "json")
_PATIENCE_S = 300.0
_SHOWN_BEFORE_S, _SHOWN_S = 0.6, 4.2
"""The picture begins so long before the first person comes, and lasts so long."""
_AFTERWARDS_S = 1.5
"""How long the batch requests run on behind the last answer."""


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=400, help="batch requests")
    parser.add_argument("--tokens", type=int, default=900, help="output tokens of each")
    parser.add_argument("--from-s", type=float, default=65.0, help="when the first person comes")
    parser.add_argument("--people", type=int, default=20, help="interactive requests, one a second")
    parser.add_argument("--picture", type=Path, help="draw the steps around the first people, as SVG")
    parser.add_argument("serve", nargs="*", help="further options of serve")
    asked = parser.parse_args()
    steps = StepLog()
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "openai_cpu_server",
        *_SERVE,
        *(_SHOWS_STEPS if asked.picture else ()),
        *asked.serve,
        cwd=_ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        people = await _story(await _url(server, steps), asked)
    finally:
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGINT)
        await server.wait()
    waits = [person.wait_s for person in people]
    median_s = statistics.median(waits)
    print(f"first token of {len(waits)} people: worst {max(waits):.3f} s, median {median_s:.3f} s")
    if asked.picture:
        begin = people[0].arrival_s - _SHOWN_BEFORE_S
        shown = steps.timeline(begin, begin + _SHOWN_S, [])
        asked.picture.write_text(step_picture(shown.steps, people), encoding="utf-8")
    return 0


async def _url(server: asyncio.subprocess.Process, steps: StepLog) -> str:
    """Wait until it is ready; from then on its log is read for steps."""
    assert server.stderr is not None
    url = ""
    async for line in server.stderr:
        found = re.search(rb'listening on ([^\s"]+)', line)
        url = found[1].decode() if found else url
        if b"ready:" in line:
            asyncio.get_running_loop().create_task(_read(server.stderr, steps))
            return url
    raise SystemExit("the server has not started")


async def _read(log: asyncio.StreamReader, steps: StepLog) -> None:
    async for line in log:
        steps.note(line.decode())


async def _story(url: str, asked: argparse.Namespace) -> list[Person]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S, limits=limits) as http:
        jobs = [asyncio.create_task(_batch(http, number, asked.tokens)) for number in range(asked.batch)]
        await asyncio.sleep(asked.from_s)
        people = []
        for number in range(asked.people):
            people.append(asyncio.create_task(_person(http, number)))
            await asyncio.sleep(1.0)
        answered = await asyncio.gather(*people)
        await asyncio.sleep(_AFTERWARDS_S)
        print(f"{sum(job.done() for job in jobs)} of {len(jobs)} batch requests had ended")
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    return answered


async def _batch(http: httpx.AsyncClient, number: int, tokens: int) -> None:
    body = _body(f"Tell me story {number}.", tokens)
    (await http.post("/v1/chat/completions", json=body, headers={"x-priority": "batch"})).raise_for_status()


async def _person(http: httpx.AsyncClient, number: int) -> Person:
    """Ask something, and read the answer to its end."""
    body = _body(f"What is {number} plus 2?", 16) | {"stream": True}
    begin = time.perf_counter()
    first: float | None = None
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if first is None and '"content":"' in line and '"content":""' not in line:
                first = time.perf_counter()
    if first is None:
        raise SystemExit("an answer without a token")
    return Person(begin, first - begin)


def _body(text: str, tokens: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True}


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
