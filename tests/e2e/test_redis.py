"""Rate limits in Redis: two servers count together. api/test_rate_limits.py has a storage that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.serving import key_file, tiny_server
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def test_tokens_are_counted_together(tmp_path: Path) -> None:
    keys = key_file(tmp_path / "keys.toml", {"ann": "tokens_per_day = 1000"})
    body = {"prompt": "x", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    with RedisServer() as redis:
        options = ("--api-keys", str(keys), "--limits-url", redis.url)
        with tiny_server(*options) as one, tiny_server(*options) as two:
            first, _, refused = [
                server.post("/v1/completions", json=body | more, headers={"x-api-key": "ann"})
                for server, more in ((one, {}), (two, {}), (one, {"max_tokens": 1000}))
            ]
    used = 2 * first.json()["usage"]["total_tokens"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert f"Limit 1000, Used {used}," in refused.json()["error"]["message"]
