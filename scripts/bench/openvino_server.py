"""OpenVINO GenAI's continuous batching behind the part of OpenAI's API that the benchmark uses. It runs in
the virtual environment of `--set-up-peers`. One thread steps the pipeline, and each new token is sent as a
chunk."""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import queue
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino
import openvino_genai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

_BLOCK_TOKENS = 32
"""Cells of a block of its pool on CPUs."""
_FINISH_REASONS = {
    openvino_genai.GenerationFinishReason.STOP: "stop",
    openvino_genai.GenerationFinishReason.LENGTH: "length",
}


@dataclass(frozen=True)
class News:
    tokens: list[int]
    finish_reason: str | None
    error: str | None = None


@dataclass(eq=False)
class Call:
    prompt: list[int]
    options: openvino_genai.GenerationConfig
    news: asyncio.Queue[News] = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    is_left: bool = False

    def put(self, news: News) -> None:
        self.loop.call_soon_threadsafe(self.news.put_nowait, news)


class Engine(threading.Thread):
    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._live: dict[Call, openvino_genai.GenerationHandle] = {}
        self._numbers = itertools.count()

    def submit(self, call: Call) -> None:
        self._inbox.put(call)

    def run(self) -> None:
        while True:
            self._admit()
            self._pipeline.step()
            for call, handle in list(self._live.items()):
                self._deliver(call, handle)

    def _admit(self) -> None:
        while not self._live or not self._inbox.empty():
            call = self._inbox.get()
            prompt = openvino.Tensor(np.array([call.prompt], dtype=np.int64))
            try:
                self._live[call] = self._pipeline.add_request(next(self._numbers), prompt, call.options)
            except RuntimeError as error:
                call.put(News([], None, error=str(error)))

    def _deliver(self, call: Call, handle: openvino_genai.GenerationHandle) -> None:
        if call.is_left:
            handle.cancel()
            del self._live[call]
            return
        while handle.can_read():
            (output,) = handle.read().values()
            reason = _FINISH_REASONS.get(output.finish_reason)
            call.put(News(list(output.generated_ids), reason))
            if reason is not None:
                del self._live[call]
                return
        if handle.get_status() == openvino_genai.GenerationStatus.IGNORED:
            call.put(News([], None, error="the pool is too small for the request"))
            del self._live[call]


class Api:
    """`POST /v1/completions`, always streamed; `GET /health`."""

    def __init__(self, engine: Engine, tokenizer: openvino_genai.Tokenizer) -> None:
        self._engine = engine
        self._text = functools.cache(lambda token: tokenizer.decode([token], skip_special_tokens=False))

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", lambda request: JSONResponse({}), methods=["GET"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _complete(self, request: Request) -> StreamingResponse:
        body = await request.json()
        call = Call(body["prompt"], _options(body))
        self._engine.submit(call)
        return StreamingResponse(self._events(call), media_type="text/event-stream")

    async def _events(self, call: Call) -> AsyncIterator[str]:
        num_tokens = 0
        try:
            reason = None
            while reason is None:
                news = await call.news.get()
                if news.error is not None:
                    yield _event({"error": {"message": news.error}})
                    return
                reason = news.finish_reason
                num_tokens += len(news.tokens)
                text = "".join(map(self._text, news.tokens))
                yield _event({"choices": [{"text": text, "finish_reason": reason}]})
            usage = {"prompt_tokens": len(call.prompt), "completion_tokens": num_tokens}
            yield _event({"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        finally:
            call.is_left = True


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _options(body: dict[str, Any]) -> openvino_genai.GenerationConfig:
    options = openvino_genai.GenerationConfig()
    options.max_new_tokens = body["max_tokens"]
    options.ignore_eos = body.get("ignore_eos", False)
    options.do_sample = body["temperature"] > 0
    if options.do_sample:
        options.temperature = body["temperature"]
        options.top_p = body["top_p"]
        options.top_k = body["top_k"]
        options.rng_seed = body["seed"]
    return options


def _pipeline(arguments: argparse.Namespace) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = -(-arguments.cache_tokens // _BLOCK_TOKENS)
    scheduler.enable_prefix_caching = True
    threads = {"INFERENCE_NUM_THREADS": arguments.threads}
    return openvino_genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, metavar="FILE.gguf")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-tokens", type=int, required=True, metavar="N")
    arguments = parser.parse_args()
    pipeline = _pipeline(arguments)
    engine = Engine(pipeline)
    engine.start()
    application = Api(engine, pipeline.get_tokenizer()).application()
    uvicorn.run(application, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
