"""The socket that the server listens on."""

from __future__ import annotations

import socket

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.http.server import authority
from openai_cpu_server.server.run import listening


def test_data_written_to_a_connection_is_sent_at_once() -> None:
    """With Nagle's algorithm a body waits for the acknowledgement of its headers, and a token for that of the
    token before it: 40 ms each."""
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_used_port_and_a_foreign_address_are_one_line_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host, line in (
            (
                "127.0.0.1",
                "Address already in use; stop the program that listens there, or choose another with",
            ),
            ("192.0.2.1", "Cannot assign requested address; --host is an address of this machine"),
            ("no-such-host.invalid", "Name or service not known; --host is an address of this machine"),
        ):
            port = server.getsockname()[1]
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
        pytest.skip(f"this machine does not have IPv6: {error}")


@pytest.mark.usefixtures("_ipv6")
@pytest.mark.parametrize("host", ["::", "[::]"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_all_addresses_include_both_families(host: str, is_shared: bool) -> None:
    with listening(host, 0, is_shared=is_shared) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


@pytest.mark.usefixtures("_ipv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_one_ipv6_address_excludes_others_and_has_brackets_in_urls(host: str) -> None:
    """The same port of 127.0.0.1 may belong to another program, so it is not tried."""
    with listening(host, 0) as listener:
        address, port, *_ = listener.getsockname()
        assert address == "::1"
        socket.create_connection(("::1", port)).close()
        with pytest.raises(StartupError, match=rf"cannot listen on \[::1\]:{port}: "), listening("::1", port):
            pass
    assert (authority("127.0.0.1", 80), authority("fe80::1", 80)) == ("127.0.0.1:80", "[fe80::1]:80")
