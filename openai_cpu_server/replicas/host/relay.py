"""A request of another process: what becomes of it here is told there."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.messages import ModelLoading, Place, TokenEvent
from openai_cpu_server.dispatch.requests.awaiting import Awaiting, TakesTokens, TakesVectors
from openai_cpu_server.errors import GenerationFailed, RequestCancelled, ServerError
from openai_cpu_server.replicas.host.session import Session
from openai_cpu_server.replicas.wire import Ended, Why


class _Relay(Awaiting):
    """Of one request. `serves`: there is an engine that others are computed by."""

    def __init__(self, request_id: str, session: Session, serves: Callable[[], bool]) -> None:
        self._id = request_id
        self._session = session
        self._serves = serves
        self._is_running = False

    @property
    def session(self) -> Session:
        return self._session

    def start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._session.start(self._id)

    def wait_at(self, place: Place) -> None:
        self._is_running = False
        self._session.wait_at(place)

    def wait_for_model(self, loading: ModelLoading) -> None:
        """Who chooses between replicas knows that this one loads."""

    def fail(self, request_id: str, error: ServerError) -> None:
        self._session.ended(Ended(request_id, self._why(error), str(error)))

    def _why(self, error: ServerError) -> Why:
        if isinstance(error, RequestCancelled):
            return Why.CANCELLED
        is_to_blame = isinstance(error, GenerationFailed) and not error.may_retry and self._serves()
        return Why.FAILED if is_to_blame else Why.RETURNED


class TokenRelay(_Relay, TakesTokens):
    def push(self, event: TokenEvent) -> None:
        self._session.tokens(event)


class VectorRelay(_Relay, TakesVectors):
    def push(self, event: Embedded) -> None:
        self._session.vectors(event)
