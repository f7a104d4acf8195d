"""Who has sent what engines died of. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.errors import CulpritsLimited

LIMIT = 2
_WINDOW_S = 600.0


class Culprits:
    """Counts the API calls that engines died of, by the account that answers for them. A server has one of
    these, for all of its engines.

    An account with `LIMIT` of them within ten minutes is sent away. Nobody answers for the account "".
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[str, dict[str, float]] = {}
        """By account, when each call was found out."""

    def book(self, account: str, call: str) -> None:
        """An engine has died of this call; of all its sequences the first counts."""
        self._forget()
        if account:
            self._calls.setdefault(account, {}).setdefault(call, self._clock())

    def check(self, account: str) -> None:
        """Raises CulpritsLimited."""
        last = sorted(self._recent(account))[-LIMIT:]
        if len(last) == LIMIT:
            raise CulpritsLimited(LIMIT, retry_after_s=last[0] + _WINDOW_S - self._clock())

    def _recent(self, account: str) -> list[float]:
        return [when for when in self._calls.get(account, {}).values() if self._clock() - when < _WINDOW_S]

    def _forget(self) -> None:
        """What is over needs no memory."""
        self._calls = {account: calls for account, calls in self._calls.items() if self._recent(account)}
