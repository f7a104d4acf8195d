"""Who waits for what becomes of a request: an API call here, or another process that has sent it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.messages import ModelLoading, Place, TokenEvent
from openai_cpu_server.errors import ServerError


class Awaiting(ABC):
    """All methods return at once."""

    @abstractmethod
    def start(self) -> None:
        """It is in a step. May be told several times."""

    @abstractmethod
    def wait_at(self, place: Place) -> None: ...

    @abstractmethod
    def wait_for_model(self, loading: ModelLoading) -> None: ...

    @abstractmethod
    def fail(self, request_id: str, error: ServerError) -> None: ...


class TakesTokens(Awaiting):
    @abstractmethod
    def push(self, event: TokenEvent) -> None: ...


class TakesVectors(Awaiting):
    @abstractmethod
    def push(self, event: Embedded) -> None: ...
