"""A replica in this process that computes the tokens of the fake backend, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import msgspec

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest
from openai_cpu_server.contract.media import MeasuredMedia
from openai_cpu_server.contract.messages import (
    CancelRequest,
    ClearCache,
    Finish,
    FinishReason,
    MeasureMedia,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus, LoadedAdapter
from openai_cpu_server.contract.replica import ByPriority, Forecast, HeldUpdate
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.replicas.wire import (
    CancelCall,
    DropAdapter,
    EndReason,
    HostReport,
    Order,
    ReplicaLost,
    ReplicaNews,
    RequestEnd,
    encode_news,
    origin,
    read_orders,
)
from tests.fakes import FAKE_INFO
from tests.scheduler.driver import alone

STATUS = EngineStatus(
    state=EngineState.READY,
    reason=None,
    loaded=1.0,
    timed=None,
    running={"interactive": 0, "batch": 0},
    waiting={"interactive": 0, "batch": 0},
    kv_tokens=100,
    kv_tokens_used=10,
    restarts=0,
    last_death=None,
    rss_bytes=1000,
)
_MULTIMODAL_INFO = msgspec.structs.replace(FAKE_INFO, sees=True)


class FakeReplica:
    """Replica and `Link` to it. Each `step` computes a token of every request."""

    def __init__(self, *, state: EngineState = EngineState.READY, reason: str | None = None) -> None:
        self.orders: list[Order] = []  # all orders received
        self.batches: list[list[Order]] = []
        self.state = state
        self.reason = reason
        self.forecast = Forecast(token_ms=1.0)
        self.held: HeldUpdate | None = None
        self.others: tuple[LiveRequest, ...] = ()
        self.adapters: dict[str, AdapterStatus] = {}
        self.is_deaf = False  # orders get no answer, but its news still arrive
        self.refuses_adapters = False
        self.sees = False  # it measures pictures; otherwise it ignores them
        self.killer: str | None = None  # id of the request that kills it in a step
        self.live: dict[str, Submit] = {}
        self._news: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._lessee: str | None = None

    # -- a `Link` ----------------------------------------------------------------------------------------

    async def attend(self, lessee: str) -> AsyncIterator[bytes]:
        self._lessee, self._news = lessee, asyncio.Queue()
        self.live.clear()
        self.send_state()
        while (payload := await self._news.get()) is not None:
            yield payload
        raise ReplicaLost("it was killed")

    async def send_orders(self, lessee: str, orders: bytes) -> bool:
        if self.is_deaf:
            await anyio.sleep_forever()
        if lessee != self._lessee:
            return False
        self.batches.append(read_orders(orders))
        for order in self.batches[-1]:
            self._follow(order)
        return True

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        if self.refuses_adapters:
            status = AdapterStatus(adapter=adapter, state=AdapterState.FAILED, reason="It does not fit.")
        else:
            loaded = LoadedAdapter(key=adapter.key, rank=1, num_tensors=1, size_bytes=1)
            status = AdapterStatus(adapter=adapter, state=AdapterState.READY, loaded=loaded)
            self.adapters[adapter.name] = status
        self.send_state()
        return status

    # -- computation ---------------------------------------------------------------------------------------

    def send_state(self) -> None:
        self.send(
            ReplicaNews(
                report=HostReport(
                    state=self.state,
                    status=msgspec.structs.replace(STATUS, state=self.state, reason=self.reason),
                    info=_MULTIMODAL_INFO if self.state is EngineState.READY else None,
                    adapters=tuple(self.adapters.values()),
                    forecast=self.forecast,
                    held=self.held,
                    others=self.others,
                )
            )
        )

    def send(self, news: ReplicaNews) -> None:
        self._news.put_nowait(encode_news(news))

    def step(self) -> None:
        events, embedded = [], []
        if any(origin(name) == self.killer for name in self.live):
            self.send(ReplicaNews(started=tuple(self.live)))
            self.die()
            return
        for name, submit in list(self.live.items()):
            if isinstance(submit.request, EmbedRequest):
                embedded.append(self._embed(name, submit))
            else:
                events.append(self._generate(name, submit, submit.request))
        if events or embedded:
            started = tuple(event.id for event in (*events, *embedded))
            self.send(ReplicaNews(started=started, events=tuple(events), embedded=tuple(embedded)))

    def die(self) -> None:
        self.live.clear()
        self._lessee = None
        self._news.put_nowait(None)

    def send_garbage(self) -> None:
        self._news.put_nowait(b"\xc1")

    def return_all(self) -> None:
        ended = tuple(RequestEnd(name, EndReason.RETURNED, "gone") for name in self.live)
        self.live.clear()
        self.send(ReplicaNews(ended=ended))

    def submitted(self) -> list[Submit]:
        return [order for order in self.orders if isinstance(order, Submit)]

    def _follow(self, order: Order) -> None:
        self.orders.append(order)
        match order:
            case Submit():
                self.live[order.request.id] = order
            case CancelRequest(id=name):
                self.live.pop(name, None)
            case DropAdapter(name=name):
                self.adapters.pop(name, None)
            case MeasureMedia(sizes=sizes) if self.sees:
                self.send(ReplicaNews(measured=tuple(MeasuredMedia(size, ((7,),)) for size in sizes)))
            case CancelCall() | ClearCache():
                pass

    def _generate(self, name: str, submit: Submit, request: GenerationRequest) -> TokenEvent:
        done = len(submit.output)
        token, finish = alone(request)[done], None
        self.live[name] = msgspec.structs.replace(submit, output=(*submit.output, token))
        if done + 1 == request.max_tokens:
            del self.live[name]
            finish = Finish(reason=FinishReason.LENGTH, output_tokens=done + 1)
        return TokenEvent(id=name, tokens=(token,), text=f"{token} ", finish=finish)

    def _embed(self, name: str, submit: Submit) -> Embedded:
        first = submit.num_embedded
        self.live[name] = msgspec.structs.replace(submit, num_embedded=first + 1)
        if first + 1 == len(submit.request.inputs):
            del self.live[name]
        return Embedded(
            id=name, first=first, count=1, vectors=bytes([sum(submit.request.inputs[first]) % 256])
        )


def busy(wait_ms: float, *, interactive: int = 0, batch: int = 0) -> Forecast:
    return Forecast(
        token_ms=1.0, wait_ms=ByPriority(wait_ms, wait_ms), num_live=ByPriority(interactive, batch)
    )


def expected(request: GenerationRequest) -> str:
    return "".join(f"{token} " for token in alone(request))
