"""Measures settings, each in a process of its own, as long as there is time."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Union

import msgspec

from openai_cpu_server.commands.tune.workload import Failure, Part, Timings, Trial
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.measure.profile import Profile
from openai_cpu_server.sandbox.environment import child_environment

_COMMAND = (
    sys.executable,
    *("-m", "openai_cpu_server.kernels.front"),
    "openai_cpu_server.commands.tune.trial",
)
_NO_TIME = Failure("not measured: no time left")
_PATIENCE = 3.0
"""A setting may take this many times as long as the first; then it is out."""
_GRACE_S = 20.0
"""The last setting may take so many seconds beyond the end."""


class Children:
    """The first setting is measured however long it takes, the others as long as the budget lasts."""

    def __init__(self, options: EngineOptions, *, context: int, budget_s: float) -> None:
        """`options` are the server's, without those of a profile."""
        self._options = options
        self._context = context
        self._budget_s = budget_s
        self._deadline = time.monotonic() + budget_s
        self._first_s: float | None = None

    def measure(self, profile: Profile, parts: tuple[Part, ...]) -> Timings | Failure:
        started = time.monotonic()
        limit_s = self._limit_s(self._deadline - started)
        if limit_s is None:
            return _NO_TIME
        answer = _run(self._trial(profile, parts), limit_s)
        if self._first_s is None:
            self._first_s = time.monotonic() - started
        return answer

    def _limit_s(self, left_s: float) -> float | None:
        """The seconds that the next setting may take; None: it must not begin."""
        if self._first_s is None:
            return 10 * self._budget_s
        if left_s < 0.5 * self._first_s:
            return None
        return min(max(_GRACE_S, _PATIENCE * self._first_s), left_s + _GRACE_S)

    def _trial(self, profile: Profile, parts: tuple[Part, ...]) -> Trial:
        return Trial(options=profile.applied(self._options), parts=parts, context=self._context)


def _run(trial: Trial, limit_s: float) -> Timings | Failure:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        _COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=child_environment()
    ) as child:
        try:
            output, _ = child.communicate(msgspec.json.encode(trial), timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return Failure(f"took longer than {limit_s:.0f} s")
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        return Failure(f"crashed (exit code {child.returncode})")
    answer: Timings | Failure = msgspec.json.decode(output, type=Union[Timings, Failure])
    return answer
