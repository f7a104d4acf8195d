#!/usr/bin/env python3
"""After a minute of full load by batch work, how long do people wait for their first token?

    scripts/priority_story.py [--batch 400] [--tokens 900] [--from-s 65] [--people 20] [-- SERVE OPTIONS]

Starts the server with the demo model and `--max-seqs 8`, sends all batch requests at once, then an
interactive one each second. Prints the worst and the median time to their first token.
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

_ROOT = Path(__file__).resolve().parent.parent
_SERVE = ("serve", "--model", "demo", "--port", "0", "--jobs-db", "none", "--max-seqs", "8")
_PATIENCE_S = 300.0


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=400, help="batch requests")
    parser.add_argument("--tokens", type=int, default=900, help="output tokens of each")
    parser.add_argument("--from-s", type=float, default=65.0, help="when the first person comes")
    parser.add_argument("--people", type=int, default=20, help="interactive requests, one a second")
    parser.add_argument("serve", nargs="*", help="further options of serve")
    asked = parser.parse_args()
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "openai_cpu_server",
        *_SERVE,
        *asked.serve,
        cwd=_ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        waits = await _story(await _url(server), asked)
    finally:
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGINT)
        await server.wait()
    median_s = statistics.median(waits)
    print(f"first token of {len(waits)} people: worst {max(waits):.3f} s, median {median_s:.3f} s")
    return 0


async def _url(server: asyncio.subprocess.Process) -> str:
    """Wait until it is ready; from then on its log is read and thrown away."""
    assert server.stderr is not None
    url = ""
    async for line in server.stderr:
        found = re.search(rb"listening on (\S+)", line)
        url = found[1].decode() if found else url
        if b"ready:" in line:
            asyncio.get_running_loop().create_task(_drained(server.stderr))
            return url
    raise SystemExit("the server has not started")


async def _drained(log: asyncio.StreamReader) -> None:
    async for _ in log:
        pass


async def _story(url: str, asked: argparse.Namespace) -> list[float]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S, limits=limits) as http:
        jobs = [asyncio.create_task(_batch(http, number, asked.tokens)) for number in range(asked.batch)]
        await asyncio.sleep(asked.from_s)
        people = []
        for number in range(asked.people):
            people.append(asyncio.create_task(_first_token_s(http, number)))
            await asyncio.sleep(1.0)
        waits = await asyncio.gather(*people)
        print(f"{sum(job.done() for job in jobs)} of {len(jobs)} batch requests had ended")
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    return waits


async def _batch(http: httpx.AsyncClient, number: int, tokens: int) -> None:
    body = _body(f"Tell me story {number}.", tokens) | {"ignore_eos": True}
    (await http.post("/v1/chat/completions", json=body, headers={"x-priority": "batch"})).raise_for_status()


async def _first_token_s(http: httpx.AsyncClient, number: int) -> float:
    body = _body(f"What is {number} plus 2?", 16) | {"stream": True}
    begin = time.perf_counter()
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if '"content":"' in line and '"content":""' not in line:
                return time.perf_counter() - begin
    raise SystemExit("an answer without a token")


def _body(text: str, tokens: int) -> dict[str, object]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
