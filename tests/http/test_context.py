"""`served`: whatever happens to a request that has no response of its own, it ends once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import InvalidRequest, RequestsLimited
from openai_cpu_server.http.context import Caller, RequestContext, RequestLog, served
from openai_cpu_server.http.errors import CLIENT_GONE
from openai_cpu_server.http.keys import Allowance, Identity, Key
from openai_cpu_server.http.limits import Meter, RateLimits
from openai_cpu_server.observe.ended import RequestOrigin

pytestmark = pytest.mark.anyio

ANN = Identity(Key(name="ann", digest=b"", allowance=Allowance(concurrent=1)), digest=None)


def one() -> tuple[RequestLog, list[RequestLog]]:
    return RequestLog("req_1", "POST", "/v1/chat/completions"), []


async def test_what_went_well_ends_with_200() -> None:
    ticket, ended = one()
    async with served(ticket, ended.append) as request:
        assert ended == []
    assert (request.error, ticket.status, ended) == (None, 200, [ticket])


async def test_a_failure_ends_there_and_is_told_by_whoever_wants_to() -> None:
    ticket, ended = one()
    wrong = InvalidRequest("No.", param="x", code="invalid_value")
    async with served(ticket, ended.append) as request:
        raise wrong
    assert (request.error, ticket.status, ticket.code, ended) == (wrong, 400, "invalid_value", [ticket])
    assert ticket.notes == {"error": "InvalidRequest"}


async def test_what_is_ours_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ticket, ended = one()
    async with served(ticket, ended.append):
        raise ZeroDivisionError
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "request req_1 failed")
    assert record.exc_info is not None
    assert (ticket.status, len(ended)) == (500, 1)


async def test_what_ends_because_its_client_has_left_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    ticket, ended = one()
    async with served(ticket, ended.append, has_left=lambda: True):
        raise InvalidRequest("No.", param="x")
    async with served(ticket, ended.append, has_left=lambda: True):
        pass
    assert (ticket.status, ticket.code, ticket.notes, ended) == (CLIENT_GONE, None, {}, [ticket] * 2)
    async with served(ticket, ended.append, has_left=lambda: True):
        raise ZeroDivisionError
    assert len(caplog.records) == 1


async def test_what_is_cancelled_goes_on_being_so() -> None:
    ticket, ended = one()
    with pytest.raises(asyncio.CancelledError):
        async with served(ticket, ended.append):
            raise asyncio.CancelledError
    assert (ticket.status, ended) == (None, [ticket])


async def test_it_is_held_to_its_keys_limits_until_its_end() -> None:
    limits = RateLimits(Meter.open(None))

    def context() -> RequestContext:
        return RequestContext(one()[0], Caller(ANN), limits.lease(ANN.key))

    ticket, ended = one()
    async with served(ticket, ended.append) as first:
        await first.hold(context())
        async with served(one()[0], ended.append) as second:
            await second.hold(context())
        assert isinstance(second.error, RequestsLimited)
    async with served(ticket, ended.append) as third:
        await third.hold(context())
    assert (first.error, third.error, len(ended)) == (None, None, 3)


async def test_a_row_or_a_message_has_a_context_that_costs_nothing() -> None:
    context = RequestContext(one()[0], Caller())
    await context.reserve(prompt_tokens=10, output_tokens=10)
    await context.refund()
    context.body.has_grown(1_000_000)
    context.body.release()
    assert (context.limit_headers, context.owner) == ({}, "")


def test_a_call_that_came_with_a_request_has_a_ticket_of_its_own() -> None:
    outer = RequestLog(
        "req_1", "GET", "/v1/responses", "/v1/responses", client="ann", priority=Priority.BATCH
    )
    inner = outer.inner(RequestOrigin.WEBSOCKET)
    assert (inner.method, inner.path, inner.route) == ("POST", outer.path, outer.route)
    assert inner.origin is RequestOrigin.WEBSOCKET
    assert inner.id != outer.id
    assert (inner.client, inner.priority, inner.has_headers) == (None, None, False)
    item = outer.inner(RequestOrigin.HTTP, id="req_1/0", path="/v1/generate")
    assert (item.id, item.path, item.route) == ("req_1/0", "/v1/generate", "/v1/generate")
