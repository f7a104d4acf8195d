#!/usr/bin/env python3
"""How fast short texts are embedded: by one bare loop, through the engine process, by our server and others.

All take their turns, round after round, and the best round of each counts. The bare loop packs inputs into
steps of several sizes, of which the best counts. llama-server is measured where `benchmark.py --set-up-peers`
has built it, sentence-transformers with --torch-python, an interpreter that has torch and
sentence-transformers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from openai_cpu_server.kernels.library import put_in_front

put_in_front()

from bench.http_client import call  # noqa: E402
from bench.peer_setup import built_llama_server  # noqa: E402
from bench.prompts import short_texts  # noqa: E402
from bench.servers import OUR_COMMAND, ServerSpec, running  # noqa: E402

from openai_cpu_server.contract.embedding import EmbedRequest  # noqa: E402
from openai_cpu_server.contract.engine import EngineState  # noqa: E402
from openai_cpu_server.contract.messages import EngineOptions  # noqa: E402
from openai_cpu_server.engine_client.client import EngineClient  # noqa: E402
from openai_cpu_server.engine_client.supervisor import Supervisor  # noqa: E402
from openai_cpu_server.llama.embedder import LlamaEmbedder  # noqa: E402
from openai_cpu_server.llama.host import Machine  # noqa: E402
from openai_cpu_server.llama.model.vocabulary import Vocabulary  # noqa: E402
from openai_cpu_server.model_source import resolve_model  # noqa: E402

_FRONT, _PROCESS = "openai_cpu_server.kernels.front", "openai_cpu_server.engine.process"
_ENGINE = [sys.executable, "-m", _FRONT, _PROCESS, "console"]
_STEP_TOKENS = (128, 256, 512)
_LIMIT_S = 300.0
"""So long a server may take for all inputs; none has taken a tenth of it."""
_LOOP = Path(__file__).parent / "bench" / "sentence_transformers_loop.py"
Seconds = Callable[[], float]
"""Embeds all inputs once."""


def main() -> None:
    args = _parser().parse_args()
    texts, path = short_texts(args.inputs), resolve_model(args.model)
    with Vocabulary.open(path) as vocabulary:
        inputs = [tuple(vocabulary.encode(text, add_special=True, parse_special=False)) for text in texts]
    num_tokens = sum(map(len, inputs))
    print(f"{len(inputs)} inputs, {num_tokens} tokens, {args.rounds} rounds\n")
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Seconds] = {
            **stack.enter_context(_bare(path, inputs)),
            "engine process": lambda: asyncio.run(_engine_s(path, inputs)),
            "our server": stack.enter_context(_server(_ours(path), texts)),
        }
        if built_llama_server().exists():
            contenders["llama-server"] = stack.enter_context(_server(_llama_server(path), texts))
        if args.torch_python is not None:
            contenders["sentence-transformers"] = stack.enter_context(_torch(args.torch_python, texts))
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(args.rounds):
            for name, seconds in contenders.items():
                best[name] = min(best[name], seconds())
    _tell(best, len(inputs), num_tokens)


def _tell(best: dict[str, float], num_inputs: int, num_tokens: int) -> None:
    bare = min(seconds for name, seconds in best.items() if name.startswith("bare"))
    print("| | s | tokens/s | inputs/s | of the best bare loop |\n| --- | --- | --- | --- | --- |")
    for name, seconds in best.items():
        rates = f"{num_tokens / seconds:,.0f} | {num_inputs / seconds:,.0f}"
        print(f"| {name} | {seconds:.3f} | {rates} | {bare / seconds:.2f} |")


@contextlib.contextmanager
def _bare(path: Path, inputs: list[tuple[int, ...]]) -> Iterator[dict[str, Seconds]]:
    embedder = LlamaEmbedder.load_cold(EngineOptions(model_path=str(path)), lambda fraction: None)
    embedder.warm_up()

    def bound(step_tokens: int) -> Seconds:
        return lambda: _bare_s(embedder, inputs, step_tokens)

    yield {f"bare, steps of {size}": bound(size) for size in _STEP_TOKENS}
    embedder.close()


def _bare_s(embedder: LlamaEmbedder, inputs: list[tuple[int, ...]], step_tokens: int) -> float:
    """One loop that fills each step."""
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


async def _engine_s(path: Path, inputs: list[tuple[int, ...]]) -> float:
    engine = EngineClient(Supervisor(_ENGINE, EngineOptions(model_path=str(path))), max_queue=10)
    running = asyncio.create_task(engine.run())
    while engine.state is not EngineState.READY:  # noqa: ASYNC110 (once)
        await asyncio.sleep(0.02)
    started = time.perf_counter()
    async with engine.embed(EmbedRequest(id="all", inputs=tuple(inputs))) as embedding:
        await embedding.vectors()
    seconds = time.perf_counter() - started
    await engine.close()
    await running
    return seconds


def _ours(path: Path) -> ServerSpec:
    options = ("--model", f"minilm={path}", "--port", "{port}", "--jobs-db", "none", "--calibrate", "start")
    return ServerSpec("ours", (*OUR_COMMAND, *options), ready="/ready")


def _llama_server(path: Path) -> ServerSpec:
    """With room for many inputs in a step; more slots or larger steps did not make it faster."""
    threads = str(Machine().num_threads())
    where = ("-m", str(path), "--host", "127.0.0.1", "--port", "{port}", "-t", threads, "-tb", threads)
    packed = ("--embeddings", "-np", "64", "-c", "16384", "-b", "2048", "-ub", "512")
    return ServerSpec("llama-server", (str(built_llama_server()), *where, *packed), ready="/health")


@contextlib.contextmanager
def _server(spec: ServerSpec, texts: list[str]) -> Iterator[Seconds]:
    """All inputs in one request."""
    body = json.dumps({"model": "minilm", "input": texts, "encoding_format": "base64"}).encode()
    with running(spec, []) as server:

        def seconds() -> float:
            started = time.perf_counter()
            answer = asyncio.run(_answer(spec.name, server.port, body))
            taken = time.perf_counter() - started
            assert len(json.loads(answer)["data"]) == len(texts)
            return taken

        seconds()
        yield seconds


async def _answer(name: str, port: int, body: bytes) -> bytes:
    """A server that hangs (llama-server did, once) ends the run, and not the patience of who waits for it."""
    try:
        return await asyncio.wait_for(call(port, "POST", "/v1/embeddings", body), _LIMIT_S)
    except asyncio.TimeoutError:
        raise SystemExit(f"{name} has not answered all inputs in {_LIMIT_S:g} s: run it again") from None


@contextlib.contextmanager
def _torch(python: Path, texts: list[str]) -> Iterator[Seconds]:
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(_minilm_archive()).extractall(folder)
        (home,) = {path.parent for path in Path(folder).rglob("modules.json")}
        command = [str(python), str(_LOOP), str(home), str(Machine().num_threads())]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            read, write = process.stdout, process.stdin

            def seconds() -> float:
                write.write("\n")
                write.flush()
                return float(read.readline())

            write.write(json.dumps(texts) + "\n")
            seconds()
            yield seconds
            write.close()


def _minilm_archive() -> Path:
    spec = find_spec("all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.rglob("model.zip"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="minilm", help="MiniLM, in any quantisation (default %(default)s)")
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch-python", type=Path, help="to measure sentence-transformers with")
    return parser


if __name__ == "__main__":
    main()
