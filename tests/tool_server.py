"""An MCP server written with the official package: `python -m tests.tool_server`, over its pipes; with a
port, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

from tests.waiting import wait_until

server = MCPServer("tools", log_level="ERROR")
Yes = Literal["yes"]  # the arguments of tools without any are whatever a model likes to write


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def long_text(size: int) -> str:
    """So many letters."""
    return "x" * size


@server.tool()
def broken(word: Yes = "yes") -> str:
    """It raises."""
    raise ValueError("no luck today")


@server.tool()
async def sleep(marker: str) -> str:
    """It never ends by itself. It leaves a file when it begins, and another one where it is told to end."""
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
    """It never ends by itself."""
    await anyio.sleep_forever()
    return "slept"


@server.tool(name="odd.name")
def odd(value: dict[str, Any] | None = None) -> str:
    """A name that stands differently in prompts."""
    return "odd"


@contextmanager
def serving_tools() -> Iterator[str]:
    """Start one over HTTP, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "tests.tool_server", str(port)]

    def listens() -> bool:
        assert process.poll() is None, "it does not listen"
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
