"""The socket that the server listens on."""

from __future__ import annotations

import socket

from openai_cpu_server.app import listening


def test_what_is_written_to_a_connection_leaves_at_once() -> None:
    """Else a body waits until its headers are acknowledged, and a token for the one before it: 40 ms each."""
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
