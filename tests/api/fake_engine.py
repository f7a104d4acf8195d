"""An engine in the test's own process, at the contract's `Engine` protocol."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from openai_cpu_server.contract.adapter import Adapter, AdapterState, AdapterStatus, LoadedAdapter
from openai_cpu_server.contract.engine import (
    EngineState,
    EngineStatus,
    LiveRequest,
    RequestState,
    unavailable,
)
from openai_cpu_server.contract.messages import Finish, FinishReason, KVStats, TokenEvent
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.dispatch.generation import Generation
from openai_cpu_server.errors import AdapterFailed, RequestCancelled
from tests.fakes import END_TOKEN, FAKE_INFO, adapted, next_token

_NOBODY = {priority.label: 0 for priority in Priority}
READY = EngineStatus(
    state=EngineState.READY,
    reason=None,
    loaded=1.0,
    timed=None,
    running=_NOBODY,
    waiting=_NOBODY,
    kv_tokens=FAKE_INFO.kv_tokens,
    kv_tokens_used=0,
    restarts=0,
    last_death=None,
    rss_bytes=1,
)


class FakeEngine:
    """Says what `FakeBackend` says, a token whenever the event loop comes by. It has room for everybody.

    `told`: what it says of itself. `goes_on`: while it is cleared, no request gets a further token.
    """

    def __init__(self, info: ModelInfo | None = FAKE_INFO, told: EngineStatus = READY) -> None:
        self.info = info
        self.told = told
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_ending = False
        self.named: dict[str, AdapterStatus] = {}
        """Its adapters."""
        self._live: dict[str, tuple[GenerationRequest, Generation]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> EngineState:
        return self.told.state

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        if self.state is not EngineState.READY:
            raise unavailable(self.told)
        generation = Generation(requests, cancel=self._leave, clock=time.monotonic)
        for request in requests:
            self._live[request.id] = (request, generation)
            task = asyncio.create_task(self._compute(request, generation))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return generation

    def cancel(self, name: str) -> bool:
        call = {name} | {f"{name.partition('/')[0]}/{index}" for index in range(1024)}
        found = [self._live.pop(request_id) for request_id in call & self._live.keys()]
        for request, generation in found:
            generation.fail(request.id, RequestCancelled("The request was cancelled on the server."))
        return bool(found)

    def requests(self) -> list[LiveRequest]:
        return [_snapshot(request) for request, _ in self._live.values()]

    def status(self) -> EngineStatus:
        running = Counter(request.priority.label for request, _ in self._live.values())
        return msgspec.structs.replace(self.told, running={**_NOBODY, **running})

    def kv_stats(self) -> KVStats | None:
        return None

    def clear_cache(self) -> None:
        if self.state is not EngineState.READY:
            raise unavailable(self.told)

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return tuple(self.named.values())

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """A path with `bad` in it is refused."""
        if self.state is not EngineState.READY:
            raise unavailable(self.told)
        if "bad" in adapter.path:
            raise AdapterFailed(f"{adapter.path} is no adapter.")
        loaded = LoadedAdapter(key=adapter.key, rank=8, num_tensors=14, size_bytes=1000)
        status = AdapterStatus(adapter=adapter, state=AdapterState.READY, loaded=loaded)
        self.named[adapter.name] = status
        return status

    def unload_adapter(self, name: str) -> bool:
        return self.named.pop(name, None) is not None

    def _leave(self, request_id: str) -> None:
        self._live.pop(request_id, None)

    async def _compute(self, request: GenerationRequest, generation: Generation) -> None:
        tokens, num_output, reason = list(request.tokens), 0, FinishReason.LENGTH
        key = self.named[request.adapter].adapter.key if request.adapter is not None else None
        while num_output < request.max_tokens and reason is FinishReason.LENGTH:
            await asyncio.sleep(0)
            await self.goes_on.wait()
            if request.id not in self._live:
                return
            tokens.append(next_token(adapted(key, tokens)))
            num_output += 1
            if tokens[-1] == END_TOKEN and not request.sampling.ignore_eos:
                reason = FinishReason.STOP
            else:
                generation.push(_event(request, tokens[-1]))
        self._leave(request.id)
        finish = Finish(reason=reason, output_tokens=num_output, cached_tokens=0)
        generation.push(TokenEvent(id=request.id, finish=finish))


def _event(request: GenerationRequest, token: int) -> TokenEvent:
    text = bytes([token - 2]).decode(errors="replace") if 2 <= token < 258 else ""
    logprobs = () if request.top_logprobs is None else (TokenLogprob(token, -1.0),)
    return TokenEvent(id=request.id, tokens=(token,), text=text, logprobs=logprobs)


def _snapshot(request: GenerationRequest) -> LiveRequest:
    return LiveRequest(
        id=request.id,
        priority=request.priority,
        state=RequestState.RUNNING,
        prompt_tokens=len(request.tokens),
        output_tokens=0,
        age_s=0.0,
        client=request.client,
        position=None,
        first_token_ms=None,
    )
