"""Commands' requests to a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.config.folders import foreign_settings
from openai_cpu_server.errors import StartupError

LOCAL = "http://127.0.0.1:8000"
_CONNECT_S = 10.0


def add_server_options(parser: CommandParser, default: str | None) -> None:
    """`default`: address without `--url`, or None if no running server is needed."""
    parser.add_argument(
        "--url",
        nargs="?",
        const=LOCAL,
        default=default,
        help=f"address of the running server; without a value: {LOCAL}",
    )
    parser.add_argument("--api-key", metavar="KEY", help="API key; default: the variable OCS_API_KEY")


class ServerClient:
    """Client of one server, without a proxy."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """`key`: None for the environment's."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise StartupError(f"{url!r} is not an address such as {LOCAL}")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._host, self._port, self._path = parts.hostname, port, urlsplit(self.url).path
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        key = foreign_settings().get("OCS_API_KEY") if key is None else key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> Any:
        with self._response("GET", path) as response:
            return json.load(response)

    def events(self, path: str, body: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        with self._response("POST", path, body) as response:
            for line in response:
                data = line.strip().removeprefix(b"data: ")
                if data.startswith(b"{"):
                    event = json.loads(data)
                    if "error" in event:
                        raise StartupError(_message(event))
                    yield event

    @contextmanager
    def _response(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> Iterator[HTTPResponse]:
        connection = self._connection(self._host, self._port, timeout=_CONNECT_S)
        has_answered = False
        try:
            connection.connect()
            connection.sock.settimeout(None)  # a model may load, and a queue may be long
            content = None if body is None else json.dumps(body)
            headers = {**self._headers, "Content-Type": "application/json"}
            connection.request(method, self._path + path, content, headers)
            response = connection.getresponse()
            has_answered = True
            if response.status >= 400:
                raise StartupError(_message(json.load(response)))
            yield response
        except (OSError, HTTPException) as error:
            if has_answered:
                raise StartupError(f"the connection to {self.url} broke: {error}") from None
            raise StartupError(
                f"no server answers at {self.url} ({getattr(error, 'strerror', None) or error}): start one "
                "with `openai-cpu-server serve`, or name another with --url"
            ) from None
        except ValueError:
            raise StartupError(f"the program that answers at {self.url} is not openai-cpu-server") from None
        finally:
            connection.close()


def _message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else str(error or answer)
