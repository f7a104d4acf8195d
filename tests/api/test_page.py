"""`GET /`: the page and its files."""

from __future__ import annotations

import gzip
import re

import httpx
import msgspec
import pytest

from openai_cpu_server.page.bundle import BUILT
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client

pytestmark = pytest.mark.anyio


def files_of(index: httpx.Response) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]+)"', index.text)


async def test_the_page_comes_with_all_of_its_files(http: httpx.AsyncClient) -> None:
    index = await http.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert files_of(index)
    assert not [file for file in files_of(index) if "//" in file]  # every file is of this server
    for file in files_of(index):
        answer = await http.get(f"/{file}")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_the_page_allows_only_its_own_scripts_and_no_frames(http: httpx.AsyncClient) -> None:
    index = await http.get("/")
    for answer in (index, await http.get("/" + files_of(index)[0])):
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert not {"'unsafe-inline'", "'unsafe-eval'"} & set(" ".join(policy.values()).split())
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in answer.headers
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", index.text)


async def test_the_page_is_compressed_for_clients_that_accept_gzip(http: httpx.AsyncClient) -> None:
    plain = await http.get("/", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    unwanted = await http.get("/", headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in unwanted.headers
    compressed = await http.get("/", headers={"accept-encoding": "br, gzip"})
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["vary"] == "accept-encoding"
    assert compressed.content == plain.content


async def test_an_unchanged_page_is_not_sent_again(http: httpx.AsyncClient) -> None:
    index = await http.get("/")
    assert index.headers["cache-control"] == "no-cache"
    again = await http.get("/", headers={"if-none-match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["app.js.map", "..%2Findex.html", "index.html", "nothing"])
async def test_other_files_are_not_there(http: httpx.AsyncClient, name: str) -> None:
    folder = files_of(await http.get("/"))[0].rpartition("/")[0]
    answer = await http.get(f"/{folder}/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
    assert (await http.get("/page/0123456789abcdef/app.js")).status_code == 404


async def test_the_page_is_open_and_its_api_needs_a_key(engine: FakeEngine) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, api_key="k"))) as http:
        index = await http.get("/")
        assert [(await http.get(f"/{path}")).status_code for path in ("", *files_of(index))] == [200] * 5
        assert (await http.get("/v1/models")).status_code == 401


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_page_can_be_switched_off(engine: FakeEngine, key: str | None) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, page=False, api_key=key))) as http:
        for path in ("/", "/page/0123456789abcdef/app.js"):
            assert (await http.get(path)).json()["error"]["code"] == "unknown_url"
        assert "/" not in (await http.get("/openapi.json")).json()["paths"]


def test_the_page_is_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in BUILT.iterdir()) < 400_000
