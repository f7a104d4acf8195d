#!/usr/bin/env python3
"""How fast short texts are embedded: by one bare loop, through the engine process, and by a server.

The bare loop packs inputs into steps of several sizes, and the best one counts. With --url the same texts go
to any server that speaks OpenAI's API (this one, llama-server --embeddings), in one request each time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from pathlib import Path

from openai_cpu_server.kernels.library import put_in_front

put_in_front()

from openai_cpu_server.contract.embedding import EmbedRequest  # noqa: E402
from openai_cpu_server.contract.engine import EngineState  # noqa: E402
from openai_cpu_server.contract.messages import EngineOptions  # noqa: E402
from openai_cpu_server.dispatch.dispatcher import Dispatcher  # noqa: E402
from openai_cpu_server.dispatch.supervisor import Supervisor  # noqa: E402
from openai_cpu_server.llama.embed.embedder import LlamaEmbedder  # noqa: E402
from openai_cpu_server.llama.model.vocabulary import Vocabulary  # noqa: E402
from openai_cpu_server.model_source import resolve_model  # noqa: E402

WORDS = """the weather is lovely today and we walk along a river to see boats pass while birds
sing""".split()  # noqa: SIM905
FRONT, PROCESS = "openai_cpu_server.kernels.front", "openai_cpu_server.engine.process"
ENGINE = [sys.executable, "-m", FRONT, PROCESS, "console"]


def texts(count: int) -> list[str]:
    """Of 4 to 12 words."""
    return [
        " ".join(WORDS[(n * 7 + i * (1 + n % 5)) % len(WORDS)] for i in range(4 + n % 9))
        for n in range(count)
    ]


def bare_s(embedder: LlamaEmbedder, inputs: list[tuple[int, ...]], step_tokens: int) -> float:
    """One loop that fills each step."""
    started = time.perf_counter()
    step: list[tuple[int, ...]] = []
    room = step_tokens
    for tokens in inputs:
        if step and (len(tokens) > room or len(step) == embedder.info.max_seqs):
            embedder.embed(step)
            step, room = [], step_tokens
        step.append(tokens)
        room -= len(tokens)
    embedder.embed(step)
    return time.perf_counter() - started


async def engine_s(path: str, inputs: list[tuple[int, ...]], repeats: int) -> float:
    engine = Dispatcher(Supervisor(ENGINE, EngineOptions(model_path=path)), max_queue=10)
    running = asyncio.create_task(engine.run())
    while engine.state is not EngineState.READY:  # noqa: ASYNC110 (once)
        await asyncio.sleep(0.02)
    times = []
    for number in range(repeats):
        started = time.perf_counter()
        async with engine.embed(EmbedRequest(id=str(number), inputs=tuple(inputs))) as embedding:
            await embedding.vectors()
        times.append(time.perf_counter() - started)
    await engine.close()
    await running
    return min(times)


def server_s(url: str, model: str, inputs: list[str]) -> float:
    body = json.dumps({"model": model, "input": inputs, "encoding_format": "base64"}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    started = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        assert len(json.load(response)["data"]) == len(inputs)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="minilm", help="as serve --model has it")
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--url", help="such as http://localhost:8000/v1/embeddings")
    args = parser.parse_args()
    written, path = texts(args.inputs), str(resolve_model(args.model))
    embedder = LlamaEmbedder.load_cold(EngineOptions(model_path=path), lambda fraction: None)
    embedder.warm_up()
    with Vocabulary.open(Path(path)) as vocabulary:
        inputs = [tuple(vocabulary.encode(text, add_special=True, parse_special=False)) for text in written]
    tokens = sum(map(len, inputs))
    print(f"{path}: {len(inputs)} inputs, {tokens} tokens")

    def tell(who: str, seconds: float) -> None:
        rates = f"{tokens / seconds:9,.0f} tokens/s {len(inputs) / seconds:7,.0f} inputs/s"
        print(f"{who:22} {seconds:7.3f} s {rates}")

    for step_tokens in (128, 256, 512):
        seconds = min(bare_s(embedder, inputs, step_tokens) for _ in range(args.repeats))
        tell(f"bare, steps of {step_tokens}", seconds)
    embedder.close()
    tell("engine process", asyncio.run(engine_s(path, inputs, args.repeats)))
    if args.url:
        tell("server", min(server_s(args.url, args.model, written) for _ in range(args.repeats)))


if __name__ == "__main__":
    main()
