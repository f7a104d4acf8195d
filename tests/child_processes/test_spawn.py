"""Start of a child process, and the frames that show its end."""

from __future__ import annotations

import io
import socket
import subprocess
import sys

import pytest

from openai_cpu_server.child_processes.spawn import spawn_options
from openai_cpu_server.contract.messages import framed, read_frame
from tests.waiting import DEADLINE_S

_CHILD = """
import os, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
sock.sendall(f"{os.getsid(0) == os.getpid()} {sys.stdin.read()!r} {'OCS_API_KEY' in os.environ}".encode())
"""


def test_a_child_has_its_socket_a_session_of_its_own_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_API_KEY", "secret")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = (sys.executable, "-c", _CHILD, str(theirs.fileno()))
        process = subprocess.Popen(command, **spawn_options(theirs))
        theirs.close()
        assert process.wait(timeout=DEADLINE_S) == 0
        assert ours.recv(1000) == b"True '' False"
        assert ours.recv(1000) == b""


def test_frames_are_read_one_by_one_and_half_a_frame_is_the_end() -> None:
    stream = io.BytesIO(framed(b"one") + framed(b"") + framed(b"cut off")[:-1])
    assert [read_frame(stream) for _ in range(3)] == [b"one", b"", None]
    assert read_frame(io.BytesIO(b"\1\0")) is None


def test_a_socket_that_is_read_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(framed(b"x" * 10_000))
        theirs.sendall(framed(b"y"))
        with ours.makefile("rb") as stream:
            assert (read_frame(stream), read_frame(stream)) == (b"x" * 10_000, b"y")
