"""The socket that the server listens on."""

from __future__ import annotations

import socket

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.http.server import authority
from openai_cpu_server.server.run import listening


def test_what_is_written_to_a_connection_leaves_at_once() -> None:
    """Else a body waits until its headers are acknowledged, and a token for the one before it: 40 ms each."""
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_and_an_address_of_elsewhere_are_one_line_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for host, line in (
            (
                "127.0.0.1",
                "Address already in use; stop the program that listens there, or choose another with",
            ),
            ("192.0.2.1", "Cannot assign requested address; --host is an address of this machine"),
            ("no-such-host.invalid", "Name or service not known; --host is an address of this machine"),
        ):
            port = taken.getsockname()[1]
            with (
                pytest.raises(StartupError, match=rf"^cannot listen on {host}:{port}: {line}"),
                listening(host, port),
            ):
                pass


@pytest.fixture
def _ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"there is no IPv6 here: {error}")


@pytest.mark.usefixtures("_ipv6")
@pytest.mark.parametrize("host", ["::", "[::]"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_all_addresses_are_those_of_both_families(host: str, is_shared: bool) -> None:
    with listening(host, 0, is_shared=is_shared) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


@pytest.mark.usefixtures("_ipv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_one_address_of_ipv6_is_that_alone_and_named_as_urls_have_it(host: str) -> None:
    """What answers at that port of 127.0.0.1, if anything does, is somebody else's."""
    with listening(host, 0) as listener:
        address, port, *_ = listener.getsockname()
        assert address == "::1"
        socket.create_connection(("::1", port)).close()
        with pytest.raises(StartupError, match=rf"cannot listen on \[::1\]:{port}: "), listening("::1", port):
            pass
    assert (authority("127.0.0.1", 80), authority("fe80::1", 80)) == ("127.0.0.1:80", "[fe80::1]:80")
