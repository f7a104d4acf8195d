"""The engine process's end of the socket. Its methods block."""

from __future__ import annotations

import socket
import threading

from openai_cpu_server.contract.frames import read_frame
from openai_cpu_server.contract.framing import frame, read_command
from openai_cpu_server.contract.messages import Command, Event


class EngineChannel:
    """Any thread may send while one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, event: Event) -> None:
        with self._sending:
            self._sock.sendall(frame(event))

    def receive(self) -> Command | None:
        """The next command; None when the other side is gone."""
        try:
            payload = read_frame(self._reader)
        except ConnectionError:  # a client that was killed with our events unread leaves a reset
            return None
        return None if payload is None else read_command(payload)
