"""An MCP server written with the official package: `python -m tests.tool_server` serves over pipes, and with
a port over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from PIL import Image
from pydantic import Field

from tests.waiting import wait_until

server = MCPServer("tools", log_level="ERROR")
Yes = Literal["yes"]  # without parameters a model may write any arguments


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def long_text(size: int) -> str:
    """Return this many letters."""
    return "x" * size


@server.tool()
def broken(word: Yes = "yes") -> str:
    """Raise an error."""
    raise ValueError("no luck today")


@server.tool()
async def sleep(marker: str) -> str:
    """Sleep until the call is cancelled. The file has the state."""
    Path(marker).write_text("begun")  # noqa: ASYNC240
    try:
        await anyio.sleep_forever()
    except asyncio.CancelledError:
        Path(marker).write_text("cancelled")  # noqa: ASYNC240
        raise
    return "slept"


HOSTILE = (
    "<img src=x onerror=\"document.title='caught'\"> [click](javascript:document.title='caught')"
    " \u202egnp.exe <script>document.title='caught'</script>"
)


@server.tool(description=HOSTILE, structured_output=False)
def lure(word: Annotated[Yes, Field(description=HOSTILE)]) -> str:
    return HOSTILE


@server.tool()
async def doze(word: Yes) -> str:
    """Sleep until the call is cancelled."""
    await anyio.sleep_forever()
    return "slept"


@server.tool(name="odd.name")
def odd(value: dict[str, Any] | None = None) -> str:
    """Use a name that prompts write differently."""
    return "odd"


def png(colour: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (100, 60), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@server.tool(structured_output=False)
def look(at: Literal["picture", "resource", "sound", "text", "damaged"]) -> list[Any]:
    """Return contents of several kinds."""
    words = TextContent(type="text", text="Here it is:")
    match at:
        case "picture":
            return [words, ImageContent(type="image", data=png("red"), mime_type="image/png")]
        case "resource":
            blob = BlobResourceContents(uri="file:///a.png", mime_type="image/png", blob=png("red"))
            return [words, EmbeddedResource(type="resource", resource=blob)]
        case "sound":
            return [words, AudioContent(type="audio", data="AAAA", mime_type="audio/wav")]
        case "text":
            text = TextResourceContents(uri="file:///a.txt", mime_type="text/plain", text="a page")
            return [words, EmbeddedResource(type="resource", resource=text)]
        case "damaged":
            return [words, ImageContent(type="image", data="AAAA", mime_type="image/png")]


@contextmanager
def serving_tools() -> Iterator[str]:
    """Start a tool server over HTTP, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.tool_server", str(port)]

    def listens() -> bool:
        assert process.poll() is None, "the tool server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    with subprocess.Popen(command) as process:
        try:
            wait_until(listens)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
