"""Suspects who leave before it is shown whether the engine died of them: else to hang up would be a way to
kill engines without being found."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.dispatch.requests.culprits import Culprits
from openai_cpu_server.dispatch.requests.live import Live


class AbsentSuspects:
    """Once all other suspects are cleared, those who have left explain the deaths; where all of them are of
    one account, it is the culprit's."""

    def __init__(self, culprits: Culprits) -> None:
        self._culprits = culprits
        self._absent: dict[str, str] = {}
        """The accounts of those who have left, by their calls."""
        self._is_concluded = False

    def left(self, some: Iterable[Live]) -> None:
        """These leave by themselves."""
        self._absent |= {live.call: live.request.account for live in some if live.suspicion}

    def conclude(self, present: Iterable[Live]) -> None:
        """Nothing, as long as some of those who are left are suspected."""
        if not self._absent or any(live.suspicion for live in present):
            return
        if len(set(self._absent.values())) == 1:
            call, account = next(iter(self._absent.items()))
            self._culprits.book(account, call)
        self.forget()
        self._is_concluded = True

    def forget(self) -> None:
        """The culprit is known."""
        self._absent = {}

    def take_conclusion(self) -> bool:
        """Whether the deaths so far are explained; told once."""
        was_concluded, self._is_concluded = self._is_concluded, False
        return was_concluded
