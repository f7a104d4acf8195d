"""Execution of a batch's rows, as HTTP requests are served, at batch priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from openai_cpu_server import errors
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.http.context import Caller, RequestContext, RequestHistory, RequestLog, new_request_id
from openai_cpu_server.http.errors import error_object, failure_of
from openai_cpu_server.http.keys import VISITOR, Identity, KeyRing, works_for
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.routes import BatchHandler
from openai_cpu_server.jobs.records import NO_LIMITS, StoredAmount
from openai_cpu_server.jobs.run.rows import RowAnswer
from openai_cpu_server.jobs.store.storage import StorageQuotas
from openai_cpu_server.observe.ended import RequestOrigin


@dataclass(frozen=True, kw_only=True)
class RowRunner:
    """Implements `jobs.rows.RunRow`. A batch outlives its request, so each row checks the current key.
    Rows do not count against rate limits, as at OpenAI, because they only use spare capacity. Beyond their
    own limit, or that of stored bytes, they wait."""

    routes: Mapping[str, BatchHandler]
    keys: KeyRing
    limits: RateLimits
    storage: StorageQuotas | None
    history: RequestHistory

    async def __call__(self, url: str, body: bytes, owner: str) -> RowAnswer:
        request_log = RequestLog(
            new_request_id(),
            "POST",
            url,
            url,
            origin=RequestOrigin.BATCH,
            client=owner or None,
            priority=Priority.BATCH,
            has_headers=False,
        )
        metrics = self.history.telemetry.metrics
        metrics.rows_running.inc()
        is_over = False
        try:
            answer = await self._answer(request_log, body, owner)
            is_over = answer.retry_after_s is None
        finally:
            if is_over:
                self.history.end(request_log)
            else:  # it is tried again, or a stop has cut it short
                metrics.count("batch_rows", "put_off")
            metrics.rows_running.dec()
        return answer

    async def _answer(self, request_log: RequestLog, body: bytes, owner: str) -> RowAnswer:
        try:
            key = self.keys.named(owner)
            if key is None and owner and not self.keys.is_open:
                raise errors.Unauthorized(f"The API key '{owner}' of this batch was deleted.")
            if self.storage is not None:
                limits = key.allowance.storage if key else NO_LIMITS
                await self.storage.check(owner, limits, StoredAmount(num_bytes=1))
            async with self.limits.row_reservation(key) as reservation:
                # The header overrides the row's body. Nothing records which machine sent a batch without key.
                identity = Identity(key or VISITOR, key.digest.hex() if key else None)
                context = RequestContext(request_log, Caller(identity, Priority.BATCH.label), reservation)
                works_for(context.identity)
                answer = await self.routes[request_log.path](body, context)
        except Exception as error:
            return _failed(error, request_log)
        request_log.status = 200
        return RowAnswer(status=200, request_id=request_log.id, body=answer)


def _failed(error: Exception, request_log: RequestLog) -> RowAnswer:
    failure = failure_of(error)
    request_log.failed(error)
    request_log.status = failure.status
    again, pauses = _again(error)
    return RowAnswer(
        status=failure.status,
        request_id=request_log.id,
        body=msgspec.json.encode(error_object(error, request_id=request_log.id)),
        retry_after_s=again,
        pauses=pauses,
    )


def _again(error: Exception) -> tuple[float | None, bool]:
    """Return the seconds until the next try, and True if all rows of the owner must wait."""
    match error:
        case errors.QueueFull() | errors.EngineUnavailable():
            return error.retry_after_s, False
        case errors.TokensLimited(retry_after_s=float(seconds)):
            return seconds, True
        case errors.CulpritsLimited():
            return error.retry_after_s, True
        case errors.StorageFull() | errors.DiskFull():
            return errors.DiskFull.retry_after_s, True
        case _:
            return None, False
