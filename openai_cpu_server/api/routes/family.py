"""What the generation route needs of a family (chat or text completions)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.parse import Ignored
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.api.render.common import Usage
from openai_cpu_server.api.resolve.calls import Circumstances
from openai_cpu_server.api.stream import StreamRenderer
from openai_cpu_server.engine.generation import Timings


class Resolved(msgspec.Struct, frozen=True):
    call: Call
    ignored: Ignored


class Renderer(Protocol):
    def whole(self, call: Call, answers: Mapping[str, Answer], usage: Usage, timings: Timings) -> bytes: ...

    def stream(self, call: Call) -> StreamRenderer: ...


class Family(Protocol):
    @property
    def renderer(self) -> Renderer: ...

    def resolve(self, data: bytes, around: Circumstances) -> Resolved:
        """Runs in any thread. Raises what `api/errors.py` lists."""
        ...
