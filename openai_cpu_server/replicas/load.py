"""When a replica would begin a newcomer's prompt: by what it told last, and what was sent to it since."""

from __future__ import annotations

from dataclasses import dataclass, field

from openai_cpu_server.contract.replica import Forecast
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.replicas.report import ReplicaState


@dataclass(frozen=True)
class _Sent:
    """A request whose prompt, as far as is known, is not read yet."""

    priority: Priority
    sent_s: float
    reading_ms: float


@dataclass
class ReplicaLoad:
    """The books of one replica. Times are on the router's clock."""

    state: ReplicaState
    forecast: Forecast
    made_s: float = 0.0
    """What was sent before that is in the forecast."""
    heard_s: float = 0.0
    """When it has told something last."""
    num_routers: int = 1
    """Routers that send to it. Each knows what it has sent itself, and takes the others to send as much."""
    _free_s: list[float] = field(default_factory=lambda: [0.0] * len(Priority))
    """By priority, when a newcomer's prompt would be begun."""
    _unread: dict[str, _Sent] = field(default_factory=dict)
    _live: dict[str, _Sent] = field(default_factory=dict)
    """Requests of this router's own that it has."""
    _num_came: int = 0
    """Those of them that the forecast has not counted."""
    _num_left: int = 0
    """Those that it has counted, and that have ended since it came."""

    @property
    def has_interactive(self) -> bool:
        """It has interactive work, of this router or of another."""
        return bool(self.forecast.num_live[Priority.INTERACTIVE]) or any(
            sent.priority is Priority.INTERACTIVE for sent in self._live.values()
        )

    @property
    def step_ms(self) -> float:
        """From one token to the next, with those who have come and gone since the forecast."""
        num_new = self.num_routers * (self._num_came - self._num_left)
        return self.forecast.step_ms(int(sum(self.forecast.num_live)) + num_new)

    def told(self, forecast: Forecast, made_s: float) -> None:
        if forecast != self.forecast:
            self._num_left = 0
        self.forecast, self.made_s = forecast, made_s
        self._num_came = sum(sent.sent_s > made_s for sent in self._live.values())
        self._unread = {name: sent for name, sent in self._unread.items() if sent.sent_s > made_s}
        self._free_s = [made_s + ms / 1000 for ms in forecast.wait_ms]
        for sent in self._unread.values():
            self._add(sent)

    def sent(self, name: str, priority: Priority, reading_ms: float, now_s: float) -> None:
        sent = _Sent(priority, now_s, self.num_routers * reading_ms)
        self._live[name] = self._unread[name] = sent
        self._num_came += 1
        self._add(sent)

    def began(self, name: str) -> None:
        """Its prompt is read. What was added for it has passed meanwhile."""
        self._unread.pop(name, None)

    def ended(self, name: str) -> None:
        self._unread.pop(name, None)
        sent = self._live.pop(name, None)
        if sent is not None and sent.sent_s > self.made_s:
            self._num_came -= 1
        elif sent is not None:
            self._num_left += 1

    def wait_ms(self, priority: Priority, now_s: float) -> float:
        return max(0.0, 1000 * (self._free_s[priority] - now_s))

    def _add(self, sent: _Sent) -> None:
        """Who comes next waits for its prompt; interactive work does not wait for batch work."""
        for priority in Priority:
            if priority >= sent.priority:
                begin_s = max(self._free_s[priority], sent.sent_s)
                self._free_s[priority] = begin_s + sent.reading_ms / 1000
