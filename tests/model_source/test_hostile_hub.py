"""A hub that does not send what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.names import parse_hub_name
from tests.hub_stand_in import Hub, Repo, running
from tests.model_source.test_resolve import User

CONTENT = b"GGUF" + bytes(400_000)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running({"acme/evil": Repo({"m.gguf": CONTENT})}) as hub:
        yield hub


@pytest.fixture
def user(hub: Hub, tmp_path: Path) -> User:
    return User(tmp_path / "home", hub.endpoint)


def files(user: User) -> list[Path]:
    return [path for path in user.home.rglob("*") if path.is_file() and path.stat().st_size]


def test_more_than_was_announced_is_not_stored(hub: Hub, user: User) -> None:
    hub.repos["acme/evil"].claimed_size = 1000
    assert "the hub sends more of m.gguf than" in user.failure("hf:acme/evil")
    assert [path for path in files(user) if path.stat().st_size > 1000] == []


@pytest.mark.parametrize("etag", ["..", ".", "a/b", "g" * 64, "0" * 63])
def test_a_hash_that_is_none_names_no_file(hub: Hub, user: User, etag: str) -> None:
    hub.repos["acme/evil"].etag = etag
    assert "does not say which content" in user.failure("hf:acme/evil/m.gguf")
    hub.repos["acme/evil"].etag = None
    assert user.resolve("hf:acme/evil/m.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "name",
    [
        "hf:o/r\0",
        "hf:o\0/r",
        "hf:o/r/m\0.gguf",
        "hf:o/r:Q4\0",
        "hf:o/r/a\n.gguf",
        "hf:o/r/a\\b.gguf",
        "hf:ö/r",
    ],
)
def test_names_with_characters_that_no_hub_has(name: str) -> None:
    with pytest.raises(StartupError, match="is not hf:OWNER/REPO"):
        parse_hub_name(name)
