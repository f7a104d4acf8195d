"""A key beside opening the door: what its requests are counted as. `exchanges/keys.txt` has more."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, locked_api


@pytest.mark.anyio
async def test_who_is_refused_before_the_body_is_read_counts_with_the_keys_priority(
    engine: FakeEngine, tmp_path: Path
) -> None:
    keys = key_ring(tmp_path, ann='priority = "batch"', bob="", root="admin = true")
    app = locked_api(engine, keys, options=msgspec.structs.replace(OPTIONS, max_body_bytes=10))
    async with client(app) as http:
        for name, more in (("ann", {}), ("ann", {"x-priority": "interactive"}), ("bob", {}), ("eve", {})):
            await http.post("/v1/completions", content=b"x" * 99, headers={**of(name), **more})
        lines = (await http.get("/metrics", headers=of("root"))).text.splitlines()
    counted = [line for line in lines if line.startswith("ocs_requests_total")]
    assert sorted(re.findall(r'priority="(\w+)",.*status="(4\d\d)"} (\d)', "\n".join(counted))) == [
        ("batch", "413", "1"),
        ("interactive", "413", "2"),
        ("none", "401", "1"),
    ]


CHAT = "/v1/chat/completions"
