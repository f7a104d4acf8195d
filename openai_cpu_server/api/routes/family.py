"""What the generation route needs of a family (chat or text completions)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.parse import Ignored, header_safe
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.api.render.common import Usage
from openai_cpu_server.api.resolve.calls import Circumstances
from openai_cpu_server.api.stream import StreamRenderer
from openai_cpu_server.contract.engine import Timings

UNENFORCED = "x-unenforced-schema-keywords"
_MOST_NAMED = 32


class Resolved(msgspec.Struct, frozen=True):
    call: Call
    ignored: Ignored
    unenforced: tuple[str, ...] = ()
    """Paths of schema keywords that the output need not obey."""

    @property
    def headers(self) -> dict[str, str]:
        if not self.unenforced:
            return self.ignored.headers
        more = ["..."] if len(self.unenforced) > _MOST_NAMED else []
        names = [header_safe(path) for path in self.unenforced[:_MOST_NAMED]]
        return {**self.ignored.headers, UNENFORCED: ",".join(names + more)}


class Renderer(Protocol):
    def whole(self, call: Call, answers: Mapping[str, Answer], usage: Usage, timings: Timings) -> bytes: ...

    def stream(self, call: Call) -> StreamRenderer: ...


class Family(Protocol):
    @property
    def renderer(self) -> Renderer: ...

    def resolve(self, data: bytes, around: Circumstances) -> Resolved:
        """Runs in any thread. Raises what `api/errors.py` lists."""
        ...
