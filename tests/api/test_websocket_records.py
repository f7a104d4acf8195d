"""Messages of WebSockets and their answers, recorded in `websockets/`.

A section is a connection to a server of its own: a title, the options of both as `{...}`, and messages as in
test_exchanges.py. Indented lines are the answer to the handshake, and all answers to a message.
`pytest --inline-snapshot=fix tests/api/test_websocket_records.py` updates them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inline_snapshot import external_file

from openai_cpu_server.http.keys import KeyRing
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring
from tests.api.serving import OPTIONS, locked_api
from tests.api.sockets import Socket, connected, is_last
from tests.api.test_exchanges import NEW_ID, REPEATED, TIMES
from tests.api.test_refusals import repeated

FOLDER = Path(__file__).parent / "websockets"
MASKED = re.compile(TIMES.pattern.replace("request_id|", ""))


class Recorder:
    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._names: dict[str, str] = {}

    async def handshake(self) -> list[str]:
        message = await self._socket.from_app.get()
        if message["type"] == "websocket.accept":
            headers = [[*map(bytes.decode, header)] for header in message["headers"]]
            return [self._shown({**message, "headers": headers})]
        body = await self._socket.from_app.get()
        return [f"    {message['status']} {json.dumps(json.loads(body['body']))}"]

    async def answers(self, line: str) -> list[str]:
        for new_id, name in self._names.items():
            line = line.replace(name, new_id)
        self._socket.send(REPEATED.sub(repeated, line))
        messages: list[dict[str, Any]] = []
        while not messages or not (is_last(messages[-1]) or messages[-1].get("type") == "response.completed"):
            messages.append(await self._socket.next())
        return [*map(self._shown, messages)]

    def _shown(self, message: dict[str, Any]) -> str:
        return "    " + NEW_ID.sub(self._named, MASKED.sub(r"\1~", json.dumps(message)))

    def _named(self, match: re.Match[str]) -> str:
        number = 1 + sum(name.startswith(f"<{match[1]}_") for name in self._names.values())
        return self._names.setdefault(match[0], f"<{match[1]}_{number}>")


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
async def test_messages_are_answered_as_recorded(tmp_path: Path, name: str) -> None:
    sections = []
    for section in (FOLDER / f"{name}.txt").read_text("utf-8").split("\n\n## "):
        lines = [line for line in section.split("\n") if line and not line.startswith("    ")]
        record, config = lines[:2], json.loads(lines[1])
        keys = KeyRing() if "keys" not in config else key_ring(tmp_path, **config.pop("keys"))
        connection = {key: config.pop(key) for key in ("path", "headers", "subprotocols") if key in config}
        options = msgspec.structs.replace(OPTIONS, keep_alive_s=0, **config)
        app = locked_api(FakeEngine(text="Hi"), keys, options=options)
        async with connected(app, **connection) as socket:
            recorder = Recorder(socket)
            record += await recorder.handshake()
            for line in lines[2:]:
                record += [line, *([] if line.startswith("# ") else await recorder.answers(line))]
        sections.append("\n".join(record))
    assert "\n\n\n## ".join(sections) + "\n" == external_file(f"websockets/{name}.txt")
