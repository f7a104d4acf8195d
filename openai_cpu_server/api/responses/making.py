"""A response while it is made: submitted, told with signs of life, and stored at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial

import anyio
import msgspec

from openai_cpu_server.api.asking.ask import EarlierAnswer
from openai_cpu_server.api.asking.call import fingerprint
from openai_cpu_server.api.asking.generation import UNWATCHED, CascadeAttempt, GenerationService
from openai_cpu_server.api.asking.renderer import Chunk
from openai_cpu_server.api.asking.running import RunningCall, Said
from openai_cpu_server.api.responses.conversation import SourcedItem
from openai_cpu_server.api.responses.objects import Item, ResponseObject, new_response
from openai_cpu_server.api.responses.stream import ResponseStream, encoded
from openai_cpu_server.api.responses.turns import AskedResponse, LastResponse
from openai_cpu_server.errors import JobsUnavailable
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import RequestContext
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.records import ItemRecord, ResponseRecord, ResponseStatus
from openai_cpu_server.jobs.responses import KeptResponses


async def alive(
    told: AsyncGenerator[Said, None], stream: ResponseStream, *, first_s: float, every_s: float
) -> AsyncIterator[Said]:
    """What is told, and where nothing comes for so long, that it lives.

    They stand among the events, and not beside them as keep-alive comments do, for they are numbered.
    `every_s`: 0 is never, as with comments.
    """
    wait_s = min(first_s, every_s) or None
    async with aclosing(told):
        while stream.is_silent:
            coming = asyncio.ensure_future(anext(told, None))
            try:
                while not (await asyncio.wait({coming}, timeout=wait_s))[0]:
                    wait_s = every_s or None
                    yield stream.lives()
            finally:
                await _left(coming)
            said = coming.result()
            if said is None:
                return
            yield said
        async for said in told:
            yield said


async def _left(coming: asyncio.Future[Said | None]) -> None:
    """Nobody waits for it any more. What reads the call must have ended before that is closed."""
    coming.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()  # it counts as seen


logger = logging.getLogger(__name__)


class RunningResponse:
    """One response that was submitted. Whoever gets it must enter `running`."""

    def __init__(
        self,
        read: AskedResponse,
        running: RunningCall,
        status: ResponseStatus,
        kept: KeptResponses | None,
        *,
        keep_alive_s: float,
        request_id: str,
    ) -> None:
        """`request_id`: errors name it."""
        self.read = read
        self.running = running
        self._kept = kept if read.is_stored else None
        self._keep_alive_s = keep_alive_s
        self._request_id = request_id
        response = new_response(read.body, running.call, status, is_stored=read.is_stored)
        self.stream = ResponseStream(
            running.call, running.model.pieces, response, is_compacting=read.body.is_compacting
        )

    @property
    def response(self) -> ResponseObject:
        return self.stream.response

    async def told(self) -> AsyncIterator[Said]:
        """What a client that listens hears. The response is stored before it hears of the end, be that a
        failure."""
        try:
            async for said in self._told():
                yield said
        except Exception as error:  # its client has heard of its id
            await self._keep(self.stream.failed(error_object(error, request_id=self._request_id)))
            raise

    async def _told(self) -> AsyncIterator[Said]:
        news = self.running.tell(self.stream)
        async for said in alive(news, self.stream, first_s=_FIRST_SIGN_S, every_s=self._keep_alive_s):
            if self.stream.has_ended:
                await self._keep()
            yield said

    async def warmed(self) -> Sequence[Chunk]:
        """What a client hears of a response whose prompt is only to be read."""
        async with self.running:
            await self.running.gather()
        chunks = self.stream.warmed(self.running.figures)
        await self._keep()
        return chunks

    async def whole(self) -> bytes:
        """The response of a call that is not streamed. Raises what the call failed with."""
        async with self.running:
            async for _ in self._told():
                pass
        return await off_loop(_SHOWN * self.running.figures.total_tokens, partial(encoded, self.response))

    def recent(self) -> LastResponse:
        """Its conversation, to be gone on from."""
        answer = EarlierAnswer(self.stream.written, self._vocabulary())
        outputs = [SourcedItem(item, "previous_response_id", answer) for item in self.response.output]
        inputs = [SourcedItem(one.item, "previous_response_id") for one in self.read.items]
        return LastResponse(self.response.id, (*self.read.earlier, *inputs, *outputs))

    def record(self, kept: KeptResponses, response: ResponseObject | None = None) -> ResponseRecord:
        """It as it is now; `response`: as it is to be seen."""
        response = response or self.response
        return ResponseRecord(
            id=response.id,
            owner=self.read.owner,
            previous_id=self.read.body.previous_response_id,
            status=ResponseStatus(response.status),
            is_background=response.background,
            created_at=response.created_at,
            expires_at=kept.expiry(response.created_at),
            response=encoded(response),
            written=msgspec.msgpack.encode(self.stream.written) if self.stream.written else b"",
            vocabulary=self._vocabulary(),
        )

    def inputs(self) -> list[ItemRecord]:
        return [_record(one.item, is_output=False) for one in self.read.items]

    def outputs(self) -> list[ItemRecord]:
        return _outputs(self.response)

    async def _keep(self, response: ResponseObject | None = None) -> None:
        """An answer that was computed is given also where it cannot be stored."""
        kept, response = self._kept, response or self.response
        if kept is None:
            return
        try:
            await kept.add(self.record(kept, response), [*self.inputs(), *_outputs(response)])
        except JobsUnavailable as error:
            logger.error("response %s was not stored: %s", self.response.id, error.reason)

    def _vocabulary(self) -> str:
        info = self.running.model.engine.info
        return "" if info is None else fingerprint(info)


_FIRST_SIGN_S = 1.0
"""So long it takes at most until a response that waits knows of that."""
_SHOWN = 4
"""About as many bytes a token has in an answer."""


class ResponseMaker:
    """Begins responses on the way of all generating calls."""

    def __init__(self, service: GenerationService, options: ApiOptions, kept: KeptResponses | None) -> None:
        self._service = service
        self._options = options
        self._kept = kept

    async def begin(
        self,
        read: AskedResponse,
        context: RequestContext,
        attempt: CascadeAttempt = UNWATCHED,
        *,
        status: ResponseStatus = ResponseStatus.IN_PROGRESS,
    ) -> RunningResponse:
        running = await self._service.begin(read.ask(), context, attempt)
        return RunningResponse(
            read,
            running,
            status,
            self._kept,
            keep_alive_s=self._options.keep_alive_s,
            request_id=context.ticket.id,
        )


def _outputs(response: ResponseObject) -> list[ItemRecord]:
    return [_record(item, is_output=True) for item in response.output]


def _record(item: Item, *, is_output: bool) -> ItemRecord:
    return ItemRecord(id=item.id, content=msgspec.json.encode(item), is_output=is_output)
