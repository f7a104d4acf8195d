"""Connections between replicas with Ray's certificates."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

from openai_cpu_server.replicas.ray.surroundings import client_tls, server_tls
from openai_cpu_server.replicas.wire import ReplicaLost, read_news
from tests.replicas.test_host import hosting, link, opened

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


def certificates(folder: Path, name: str) -> Mapping[str, str]:
    """Return Ray's variables for a new certificate, which is its own authority."""
    key, certificate = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", f"/CN={name}"]
    command += ["-nodes", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": certificate,
        "RAY_TLS_SERVER_KEY": key,
        "RAY_TLS_CA_CERT": certificate,
    }


async def first_state(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    async with (
        hosting() as host,
        opened(host, tls=server_tls(there)) as door,
        aclosing(link(door, client_tls(here)).attend("me")) as news,
    ):
        return read_news(await anext(news)).report.state.value


async def test_both_sides_have_the_clusters_certificate(tmp_path: Path) -> None:
    ours = certificates(tmp_path, "ours")
    assert await first_state(ours, ours) == "ready"


async def test_a_peer_with_another_certificate_or_none_is_refused(tmp_path: Path) -> None:
    ours, others = certificates(tmp_path, "ours"), certificates(tmp_path, "others")
    for wrong in (others, {}):
        with pytest.raises(ReplicaLost):
            await first_state(ours, wrong)


def test_connections_are_plain_without_ray_tls() -> None:
    assert server_tls({}) is None
    assert client_tls({"RAY_USE_TLS": "0"}) is None
