"""`served` ends a request without a response of its own exactly once."""

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


def new_log() -> tuple[RequestLog, list[RequestLog]]:
    return RequestLog("req_1", "POST", "/v1/chat/completions"), []


async def test_a_request_without_an_error_ends_with_200() -> None:
    request_log, ended = new_log()
    async with served(request_log, ended.append) as request:
        assert ended == []
    assert (request.error, request_log.status, ended) == (None, 200, [request_log])


async def test_a_failure_is_caught_and_is_an_attribute_of_the_request() -> None:
    request_log, ended = new_log()
    invalid = InvalidRequest("No.", param="x", code="invalid_value")
    async with served(request_log, ended.append) as request:
        raise invalid
    assert (request.error, request_log.status, request_log.code, ended) == (
        invalid,
        400,
        "invalid_value",
        [request_log],
    )
    assert request_log.notes == {"error": "InvalidRequest"}


async def test_an_internal_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    request_log, ended = new_log()
    async with served(request_log, ended.append):
        raise ZeroDivisionError
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "request req_1 failed")
    assert record.exc_info is not None
    assert (request_log.status, len(ended)) == (500, 1)


async def test_an_error_after_the_client_has_left_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    request_log, ended = new_log()
    async with served(request_log, ended.append, has_left=lambda: True):
        raise InvalidRequest("No.", param="x")
    async with served(request_log, ended.append, has_left=lambda: True):
        pass
    assert (request_log.status, request_log.code, request_log.notes, ended) == (
        CLIENT_GONE,
        None,
        {},
        [request_log] * 2,
    )
    async with served(request_log, ended.append, has_left=lambda: True):
        raise ZeroDivisionError
    assert len(caplog.records) == 1


async def test_a_cancellation_is_raised_again() -> None:
    request_log, ended = new_log()
    with pytest.raises(asyncio.CancelledError):
        async with served(request_log, ended.append):
            raise asyncio.CancelledError
    assert (request_log.status, ended) == (None, [request_log])


async def test_a_request_counts_against_its_keys_limits_until_it_ends() -> None:
    limits = RateLimits(Meter.open(None))

    def context() -> RequestContext:
        return RequestContext(new_log()[0], Caller(ANN), limits.reservation(ANN.key))

    request_log, ended = new_log()
    async with served(request_log, ended.append) as first:
        await first.hold(context())
        async with served(new_log()[0], ended.append) as second:
            await second.hold(context())
        assert isinstance(second.error, RequestsLimited)
    async with served(request_log, ended.append) as third:
        await third.hold(context())
    assert (first.error, third.error, len(ended)) == (None, None, 3)


async def test_a_row_or_a_message_has_a_context_that_costs_nothing() -> None:
    context = RequestContext(new_log()[0], Caller(), RateLimits(Meter.open(None)).reservation(None))
    await context.reservation.reserve(prompt_tokens=10, output_tokens=10)
    await context.reservation.refund()
    context.body.has_grown(1_000_000)
    context.body.release()
    assert (context.limit_headers, context.owner) == ({}, "")


def test_an_inner_call_has_a_log_entry_of_its_own() -> None:
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
