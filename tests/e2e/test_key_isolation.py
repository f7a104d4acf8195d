"""No key learns from the usage of its answers what another key has sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import key_file, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

LONG = " ".join(f"word{number}" for number in range(40))
MESSAGES = [{"role": "user", "content": LONG}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": LONG, "max_tokens": 1},
    "/v1/responses": {"input": LONG, "max_output_tokens": 1},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 1},
    "/generate": {"prompt": LONG, "max_tokens": 1},
}


class Holders:
    """A server with two keys for each path, and what each is told."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def cached(self, holder: str, path: str) -> int:
        """The cached tokens of an answer, under whatever name its API has for them."""
        headers = {"x-api-key": _name(holder, path)}
        answer = httpx.post(self._server.url + path, json=BODIES[path], headers=headers, timeout=DEADLINE_S)
        assert answer.status_code == 200, answer.text
        return _cached(answer.json())


def _name(holder: str, path: str) -> str:
    return holder + path.replace("/", "-")


def _cached(told: object) -> int:
    if not isinstance(told, dict):
        return 0
    own = sum(told.get(name) or 0 for name in ("cached_tokens", "cache_read_input_tokens"))
    return own + sum(map(_cached, told.values()))


def serving(folder: Path, *options: str) -> Iterator[Holders]:
    names = [_name(holder, path) for holder in ("ann", "bob") for path in BODIES]
    keys = key_file(folder / "keys.toml", dict.fromkeys(names, ""))
    with tiny_server("--api-keys", str(keys), *options) as server:
        yield Holders(server)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holders]:
    yield from serving(tmp_path_factory.mktemp("apart"))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holders]:
    yield from serving(tmp_path_factory.mktemp("together"), "--cache-isolation", "off")


@pytest.mark.parametrize("path", BODIES)
def test_by_default_only_what_the_same_key_has_sent_is_told_as_cached(apart: Holders, path: str) -> None:
    apart.cached("ann", path)
    assert apart.cached("bob", path) == 0
    assert apart.cached("ann", path) > 0
    assert apart.cached("bob", path) > 0


def test_keys_share_where_that_is_asked_for(together: Holders) -> None:
    together.cached("ann", "/v1/chat/completions")
    assert together.cached("bob", "/v1/chat/completions") > 0
