"""*embedding*: speed of embedding short texts by one bare loop, by our server, and by llama-server if
`benchmark.py --set-up-peers` has built it.

All take turns, and the best round of each counts. The bare loop packs inputs into steps of several sizes, of
which the best counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.asking import Failed
from bench.clients import call
from bench.models import gguf
from bench.peers import BUILT_LLAMA_SERVER
from bench.prompts import short_texts
from bench.servers import ServerSpec, Variant, ours, running

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.embedder import LlamaEmbedder
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model.vocabulary import Vocabulary

_STEP_TOKENS = (128, 256, 512)
_LIMIT_S = 300.0
"""Most time for all inputs; no server has taken a tenth of it."""
Seconds = Callable[[], float]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=gguf, default="minilm", help="MiniLM, in any quantisation")
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> None:
    texts = short_texts(options.inputs)
    with Vocabulary.open(options.model) as vocabulary:
        inputs = [tuple(vocabulary.encode(text, add_special=True, parse_special=False)) for text in texts]
    num_tokens = sum(map(len, inputs))
    print(f"{len(inputs)} inputs, {num_tokens} tokens, {options.rounds} rounds\n")
    with contextlib.ExitStack() as stack:
        embedder = LlamaEmbedder.load_cold(
            EngineOptions(model_path=str(options.model)), lambda fraction: None
        )
        stack.callback(embedder.close)
        embedder.warm_up()
        contenders: dict[str, Seconds] = {
            f"bare, steps of {size}": functools.partial(_bare_s, embedder, inputs, size)
            for size in _STEP_TOKENS
        }
        contenders["our server"] = stack.enter_context(_server(ours(Variant.WHOLE, options.model), texts))
        if BUILT_LLAMA_SERVER.exists():
            contenders["llama-server"] = stack.enter_context(_server(_llama_server(options.model), texts))
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(options.rounds):
            for name, seconds in contenders.items():
                best[name] = min(best[name], seconds())
    bare = min(seconds for name, seconds in best.items() if name.startswith("bare"))
    print("| | s | tokens/s | inputs/s | of the best bare loop |\n| --- | --- | --- | --- | --- |")
    for name, taken in best.items():
        rates = f"{num_tokens / taken:,.0f} | {len(inputs) / taken:,.0f}"
        print(f"| {name} | {taken:.3f} | {rates} | {bare / taken:.2f} |")


def _bare_s(embedder: LlamaEmbedder, inputs: list[tuple[int, ...]], step_tokens: int) -> float:
    started = time.perf_counter()
    step: list[tuple[int, ...]] = []
    room = step_tokens
    for tokens in sorted(inputs, key=len, reverse=True):
        if step and (len(tokens) > room or len(step) == embedder.info.max_seqs):
            embedder.embed(step)
            step, room = [], step_tokens
        step.append(tokens)
        room -= len(tokens)
    embedder.embed(step)
    return time.perf_counter() - started


def _llama_server(path: Path) -> ServerSpec:
    """Room for many inputs in a step; more slots or larger steps did not make it faster."""
    threads = str(Machine().num_threads())
    where = ("-m", str(path), "--host", "127.0.0.1", "--port", "{port}", "-t", threads, "-tb", threads)
    packed = ("--embeddings", "-np", "64", "-c", "16384", "-b", "2048", "-ub", "512")
    return ServerSpec("llama-server", (str(BUILT_LLAMA_SERVER), *where, *packed), ready="/health")


@contextlib.contextmanager
def _server(spec: ServerSpec, texts: list[str]) -> Iterator[Seconds]:
    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
    with running(spec, []) as server:

        def seconds() -> float:
            started = time.perf_counter()
            try:
                answer = asyncio.run(
                    asyncio.wait_for(call(server.port, "POST", "/v1/embeddings", body), _LIMIT_S)
                )
            except asyncio.TimeoutError:  # llama-server has hung once
                raise Failed(f"{spec.label} has not answered all inputs in {_LIMIT_S:g} s") from None
            taken = time.perf_counter() - started
            assert len(json.loads(answer)["data"]) == len(texts)
            return taken

        seconds()
        yield seconds
