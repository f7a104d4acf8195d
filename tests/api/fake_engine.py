"""An engine in the test's own process, of the contract's `Engine` protocol."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Sequence

import msgspec
from anyio.lowlevel import checkpoint

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest, SeeStep, unavailable
from openai_cpu_server.contract.media import MediaEmbeddings, MediaShape, MediaSize, require_senses
from openai_cpu_server.contract.messages import Finish, FinishReason, KVStats, TokenEvent
from openai_cpu_server.contract.model_info import (
    Adapter,
    AdapterState,
    AdapterStatus,
    LoadedAdapter,
    ModelInfo,
)
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.engine.output import LoopDetector
from openai_cpu_server.engine.parts import OutputParts
from openai_cpu_server.engine_client.calls import EmbeddingAnswer, GenerationAnswer
from openai_cpu_server.engine_client.live import names_of
from openai_cpu_server.errors import AdapterFailed, GenerationFailed, RequestCancelled
from tests.api.fake_tokenizer import FakeTokenizer
from tests.fakes import END_TOKEN, FAKE_INFO, FAKE_LIVE, FakeEmbedder, adapted, next_token

_NO_REQUESTS = {priority.label: 0 for priority in Priority}
READY = EngineStatus(
    state=EngineState.READY,
    reason=None,
    loaded=1.0,
    timed=None,
    running=_NO_REQUESTS,
    waiting=_NO_REQUESTS,
    kv_tokens=FAKE_INFO.kv_tokens,
    kv_tokens_used=0,
    restarts=0,
    last_death=None,
    rss_bytes=1,
)


class FakeEngine:
    """Generates what `FakeBackend` generates, one token at each turn of the event loop, without a queue.
    With `FAKE_EMBEDDER` or `FAKE_RERANKER` it embeds as `FakeEmbedder` does, an input at a time.

    `base_status`: its status without the counts of running requests. `text`: the text of all its answers.
    `goes_on`: no request gets another token while this event is cleared; `is_held` begins with it cleared.
    """

    def __init__(
        self,
        info: ModelInfo | None = FAKE_INFO,
        base_status: EngineStatus = READY,
        *,
        text: str | None = None,
        is_held: bool = False,
    ) -> None:
        self.info = info
        self.base_status = base_status
        self.text = text
        self.goes_on = asyncio.Event()
        if not is_held:
            self.goes_on.set()
        self.is_ending = False
        self.adapters_by_name: dict[str, AdapterStatus] = {}
        self.see: SeeStep | None = None
        """Viewer of the steps, which a test calls."""
        self._live: dict[
            str, tuple[GenerationRequest | EmbedRequest, GenerationAnswer | EmbeddingAnswer]
        ] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.submitted: list[GenerationRequest] = []
        self.num_cleared = 0

    @property
    def state(self) -> EngineState:
        return self.base_status.state

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        if self.state is not EngineState.READY:
            raise unavailable(self.base_status)
        self.submitted += requests
        generation = GenerationAnswer(requests, cancel=self._leave, clock=time.monotonic)
        for request in requests:
            self._live[request.id] = (request, generation)
            self._keep(asyncio.create_task(self._compute(request, generation)))
        return generation

    def embed(self, request: EmbedRequest) -> EmbeddingAnswer:
        if self.state is not EngineState.READY or self.info is None:
            raise unavailable(self.base_status)
        embedding = EmbeddingAnswer(request, cancel=self._leave, clock=time.monotonic)
        self._live[request.id] = (request, embedding)
        self._keep(asyncio.create_task(self._embed(request, embedding, FakeEmbedder(self.info))))
        return embedding

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        """Return four rows for each."""
        assert self.info is not None
        require_senses(sizes, sees=self.info.sees, hears=self.info.hears)
        return tuple((MediaEmbeddings(4, 4),) for _ in sizes)

    def cancel(self, name: str) -> bool:
        call = {name} | {f"{name.partition('/')[0]}/{index}" for index in range(1024)}
        found = [self._live.pop(request_id) for request_id in call & self._live.keys()]
        for request, answer in found:
            answer.fail(request.id, RequestCancelled("The request was cancelled on the server."))
        return bool(found)

    def end(self) -> None:
        """Fail all requests, as an engine does whose server shuts down."""
        while self._live:
            _, (request, answer) = self._live.popitem()
            answer.fail(request.id, GenerationFailed("The server is shutting down.", may_retry=True))

    def stop(self, name: str) -> bool:
        found = [key for key in self._live if name in names_of(key)]
        for request, answer in map(self._live.pop, found):
            assert isinstance(answer, GenerationAnswer)
            finish = Finish(reason=FinishReason.STOP, output_tokens=0)
            answer.push(TokenEvent(id=request.id, finish=finish))
        return bool(found)

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        return request_id in self._live

    def requests(self) -> list[LiveRequest]:
        return [_snapshot(request) for request, _ in self._live.values()]

    def status(self) -> EngineStatus:
        running = Counter(request.priority.label for request, _ in self._live.values())
        return msgspec.structs.replace(self.base_status, running={**_NO_REQUESTS, **running})

    def kv_stats(self) -> KVStats | None:
        return None

    def show_steps(self, see: SeeStep) -> None:
        self.see = see

    def hide_steps(self) -> None:
        self.see = None

    def clear_cache(self) -> None:
        if self.state is not EngineState.READY:
            raise unavailable(self.base_status)
        self.num_cleared += 1

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return tuple(self.adapters_by_name.values())

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """Refuse a path with `bad` in it."""
        if self.state is not EngineState.READY:
            raise unavailable(self.base_status)
        if "bad" in adapter.path:
            raise AdapterFailed(f"{adapter.path} is not an adapter.")
        loaded = LoadedAdapter(key=adapter.key, rank=8, num_tensors=14, size_bytes=1000)
        status = AdapterStatus(adapter=adapter, state=AdapterState.READY, loaded=loaded)
        self.adapters_by_name[adapter.name] = status
        return status

    def unload_adapter(self, name: str) -> bool:
        return self.adapters_by_name.pop(name, None) is not None

    def _leave(self, request_id: str) -> None:
        self._live.pop(request_id, None)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _embed(self, request: EmbedRequest, embedding: EmbeddingAnswer, model: FakeEmbedder) -> None:
        for first, tokens in enumerate(request.inputs):
            await checkpoint()
            await self.goes_on.wait()
            if request.id not in self._live:
                return
            vectors = model.embed([tokens]).vectors
            embedding.push(Embedded(id=request.id, first=first, count=1, vectors=vectors))
        self._leave(request.id)

    async def _compute(self, request: GenerationRequest, generation: GenerationAnswer) -> None:
        tokens, num_output, reason = list(request.tokens), 0, FinishReason.LENGTH
        key = self.adapters_by_name[request.adapter].adapter.key if request.adapter is not None else None
        parts = OutputParts(request.marks, FakeTokenizer().piece) if request.marks is not None else None
        script = None if self.text is None else [*(byte + 2 for byte in self.text.encode()), END_TOKEN]
        loops, is_loop = LoopDetector(), False
        while num_output < request.max_tokens and reason is FinishReason.LENGTH and not is_loop:
            await checkpoint()
            await self.goes_on.wait()
            if request.id not in self._live:
                return
            if script is not None:
                tokens.append(script[num_output])
            elif scores := bias_scores(request):
                tokens.append(max(scores, key=scores.__getitem__))
            else:
                tokens.append(next_token(adapted(key, tokens)))
            num_output += 1
            if tokens[-1] == END_TOKEN and not request.sampling.ignore_eos:
                reason = FinishReason.STOP
            else:
                _push(generation, _event(request, tokens[-1]), parts)
                is_loop = request.ends_loops and loops.read(tokens[-1])
        self._leave(request.id)
        finish = Finish(reason=reason, output_tokens=num_output, cached_tokens=0, is_loop=is_loop)
        _push(generation, TokenEvent(id=request.id, finish=finish), parts)


def bias_scores(request: GenerationRequest) -> dict[int, float]:
    """Log-probabilities of the tokens with a bias, which are all that the fake knows."""
    return {
        token: -(zlib.crc32(repr((*request.tokens, token)).encode()) % 4001 / 1000)
        for token in request.sampling.logit_bias
    }


def _push(generation: GenerationAnswer, event: TokenEvent, parts: OutputParts | None) -> None:
    for part in (event,) if parts is None else parts.cut(event):
        generation.push(part)


def _event(request: GenerationRequest, token: int) -> TokenEvent:
    text = bytes([token - 2]).decode(errors="replace") if 2 <= token < 258 else ""
    scores = bias_scores(request) or {token: -1.0}
    logprob = TokenLogprob(token, scores[token], tuple(scores.items()) if len(scores) > 1 else ())
    logprobs = () if request.top_logprobs is None else (logprob,)
    return TokenEvent(id=request.id, tokens=(token,), text=text, logprobs=logprobs)


def _snapshot(request: GenerationRequest | EmbedRequest) -> LiveRequest:
    return msgspec.structs.replace(
        FAKE_LIVE,
        id=request.id,
        priority=request.priority,
        prompt_tokens=request.num_tokens if isinstance(request, EmbedRequest) else len(request.tokens),
        client=request.client,
        num_inputs=len(request.inputs) if isinstance(request, EmbedRequest) else None,
    )
