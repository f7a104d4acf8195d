"""Storage limits of a key, the free part of the disk, and batches that wait for room."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.jobs.store.storage import DiskSpace, disk_space
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, served
from tests.api.talking import MESSAGES, error_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KB = 1024
GIB = 1024**3
CHAT = "/v1/chat/completions"


class Disk:
    """Disk with the space that the test sets."""

    def __init__(self, space: DiskSpace | None = None) -> None:
        self.space = space

    def __call__(self, folder: Path) -> DiskSpace:
        return disk_space(folder) if self.space is None else self.space


@asynccontextmanager
async def serving(folder: Path, limits: str, *, disk: Disk | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a key `ann` with these limits and a key `bob` without limits."""
    options = JobOptions(model="fake", poll_s=0.05)
    jobs = Jobs(open_database(str(folder / "jobs.db")), options, space=disk or Disk())
    application = create_api(
        served(FakeEngine(text="Hello you")), OPTIONS, keys=key_ring(folder, ann=limits, bob=""), jobs=jobs
    )
    running = asyncio.create_task(jobs.run(application.run_row))
    async with client(application.app) as http:
        yield http
    await application.settle()
    await jobs.close()
    await running


async def upload(http: httpx.AsyncClient, owner: str, content: bytes) -> httpx.Response:
    return await http.post(
        "/v1/files", files={"file": ("rows.jsonl", content)}, data={"purpose": "batch"}, headers=of(owner)
    )


async def respond(http: httpx.AsyncClient, owner: str, size: int, **fields: object) -> httpx.Response:
    """Create a response whose stored schema has a description of `size` bytes."""
    schema = {"type": "object", "description": "x" * size}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    body = {"input": "x", "max_output_tokens": 5, "text": {"format": form}, **fields}
    return await http.post("/v1/responses", json=body, headers=of(owner))


async def batch(http: httpx.AsyncClient, owner: str, file_id: str) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    return await http.post("/v1/batches", json=body, headers=of(owner))


def assert_full(answer: httpx.Response) -> None:
    assert (answer.status_code, error_of(answer)["code"]) == (507, "storage_quota_exceeded")
    assert answer.headers["x-should-retry"] == "false"


def assert_disk_full(answer: httpx.Response) -> None:
    assert (answer.status_code, error_of(answer)["code"]) == (503, "disk_full")
    assert int(answer.headers["retry-after"]) > 0


def lines(num_rows: int, **fields: object) -> bytes:
    body = {"messages": MESSAGES, "max_tokens": 5, **fields}
    rows = (
        {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body} for number in range(num_rows)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


async def test_the_number_of_files_is_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, "files = 2") as http:
        first, second, third = [await upload(http, "ann", b"x") for _ in range(3)]
        assert (first.status_code, second.status_code) == (200, 200)
        assert_full(third)
        assert (await upload(http, "bob", b"x")).status_code == 200
        await http.delete(f"/v1/files/{first.json()['id']}", headers=of("ann"))
        assert (await upload(http, "ann", b"x")).status_code == 200


async def test_a_file_may_be_larger_than_other_bodies_and_has_a_limit_and_a_purpose(
    engine: FakeEngine, jobs: Jobs
) -> None:
    limits = msgspec.structs.replace(OPTIONS, max_body_bytes=KB, max_file_bytes=2 * KB)
    async with client(create_api(served(engine), limits, jobs=jobs).app) as http:
        assert (await upload(http, "nobody", b"x" * 2 * KB)).status_code == 200
        assert (await upload(http, "nobody", b"x" * 2 * KB * KB)).status_code == 413
        files = {"file": ("a.jsonl", b"{}")}
        for wrong in ("fine-tune", ["batch", "vision"]):
            refused = await http.post("/v1/files", files=files, data={"purpose": wrong})
            assert (refused.status_code, error_of(refused)["param"]) == (400, "purpose")


async def test_an_upload_is_a_form(engine: FakeEngine, jobs: Jobs) -> None:
    async with client(create_api(served(engine), OPTIONS, jobs=jobs).app) as http:
        for arguments in ({"json": {"purpose": "batch"}}, {"data": {"purpose": "batch"}}):
            refused = await http.post("/v1/files", **arguments)
            assert refused.status_code == 400
            assert "multipart/form-data" in error_of(refused)["message"]


async def test_the_bytes_of_files_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, "stored_mb = 1") as http:
        large = (await upload(http, "ann", b"x" * 900 * KB)).json()
        assert_full(await upload(http, "ann", b"x" * 200 * KB))
        assert (await upload(http, "ann", b"x" * 100 * KB)).status_code == 200
        assert_full(await respond(http, "ann", 50 * KB))
        assert (await upload(http, "bob", b"x" * 2000 * KB)).status_code == 200
        await http.delete(f"/v1/files/{large['id']}", headers=of("ann"))
        assert (await upload(http, "ann", b"x" * 200 * KB)).status_code == 200


async def test_concurrent_uploads_do_not_exceed_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, "stored_mb = 1") as http:
        answers = await asyncio.gather(*(upload(http, "ann", b"x" * 300 * KB) for _ in range(8)))
        stored = [answer for answer in answers if answer.status_code == 200]
        assert len(stored) <= 3
        listed = (await http.get("/v1/files", headers=of("ann"))).json()["data"]
        assert len(listed) == len(stored)


async def test_the_bytes_of_responses_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, "stored_mb = 1") as http:
        stored = [await respond(http, "ann", 240 * KB) for _ in range(4)]
        assert [answer.status_code for answer in stored] == [200] * 4, stored[0].text
        for fields in ({}, {"store": True}, {"background": True}, {"stream": True}):
            assert_full(await respond(http, "ann", 240 * KB, **fields))
        assert (await respond(http, "ann", 240 * KB, store=False)).status_code == 200
        assert (await respond(http, "bob", 240 * KB)).status_code == 200
        counted = await http.post("/v1/responses/input_tokens", json={"input": "x"}, headers=of("ann"))
        assert counted.status_code == 200
        for answer in stored[:2]:
            await http.delete(f"/v1/responses/{answer.json()['id']}", headers=of("ann"))
        assert (await respond(http, "ann", 240 * KB)).status_code == 200


async def test_a_batch_without_room_for_its_results_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, "stored_mb = 1") as http:
        rows = lines(1)
        file = (await upload(http, "ann", rows + b"\n" * (KB * KB - len(rows)))).json()
        assert file["bytes"] == KB * KB
        assert_full(await batch(http, "ann", file["id"]))


async def test_rows_wait_until_there_is_room(tmp_path: Path) -> None:
    """The large file leaves room for the results of a few rows."""
    async with serving(tmp_path, "stored_mb = 1") as http:
        rows = lines(100)
        file = (await upload(http, "ann", rows)).json()
        large = (await upload(http, "ann", b"x" * (KB * KB - len(rows) - 10 * KB))).json()
        waiting_batch = (await batch(http, "ann", file["id"])).json()
        other = (await upload(http, "bob", rows)).json()
        others_batch = (await batch(http, "bob", other["id"])).json()
        await wait_for_completion(tmp_path, others_batch["id"])
        shown_batch = (await http.get(f"/v1/batches/{waiting_batch['id']}", headers=of("ann"))).json()
        assert shown_batch["status"] == "in_progress"
        assert 0 < shown_batch["request_counts"]["completed"] < 100
        await http.delete(f"/v1/files/{large['id']}", headers=of("ann"))
        await wait_for_completion(tmp_path, waiting_batch["id"])
        shown_batch = (await http.get(f"/v1/batches/{waiting_batch['id']}", headers=of("ann"))).json()
        assert shown_batch["request_counts"] == {"total": 100, "completed": 100, "failed": 0}


async def wait_for_completion(folder: Path, batch_id: str) -> None:
    status = f"SELECT status FROM batches WHERE id = '{batch_id}'"
    with closing(sqlite3.connect(folder / "jobs.db")) as database:
        await eventually(lambda: database.execute(status).fetchone() == ("completed",))


@pytest.mark.parametrize(
    ("space", "is_full"),
    [
        (DiskSpace(total=1000 * GIB, free=1 * GIB + GIB // 2), False),
        (DiskSpace(total=1000 * GIB, free=1 * GIB - 1), True),
        (DiskSpace(total=1 * GIB, free=GIB // 10), False),
        (DiskSpace(total=1 * GIB, free=GIB // 21), True),
    ],
)
async def test_a_part_of_the_disk_stays_free(tmp_path: Path, space: DiskSpace, is_full: bool) -> None:
    disk = Disk()
    async with serving(tmp_path, "", disk=disk) as http:
        file = (await upload(http, "ann", lines(1))).json()
        stored = (await respond(http, "ann", 10)).json()
        disk.space = space
        # A deletion makes the server look at the disk again.
        await http.delete(f"/v1/responses/{stored['id']}", headers=of("ann"))
        refused = [
            await upload(http, "bob", b"x"),
            await batch(http, "ann", file["id"]),
            await respond(http, "ann", 10, store=True),
            await respond(http, "ann", 10, background=True),
        ]
        assert {answer.status_code for answer in refused} == {503 if is_full else 200}
        by_default = await respond(http, "ann", 10)
        assert (by_default.status_code, by_default.json()["store"]) == (200, not is_full)
        assert (await http.get("/v1/files", headers=of("ann"))).status_code == 200


async def test_an_upload_must_fit_beside_what_stays_free(tmp_path: Path) -> None:
    disk = Disk(DiskSpace(total=1000 * GIB, free=GIB + 100 * KB))
    async with serving(tmp_path, "", disk=disk) as http:
        assert_disk_full(await upload(http, "ann", b"x" * 200 * KB))
        assert (await upload(http, "ann", b"x" * 50 * KB)).status_code == 200


async def test_rows_have_a_limit_of_tokens_of_their_own(tmp_path: Path) -> None:
    keys = key_ring(tmp_path, ann="batch_tokens_per_day = 60\ntokens_per_day = 1000")
    application = create_api(served(FakeEngine(text="Hello you")), OPTIONS, keys=keys)

    def body(max_tokens: int) -> bytes:
        return json.dumps({"messages": MESSAGES, "max_tokens": max_tokens}).encode()

    answers = [await application.run_row(CHAT, body(9), "ann") for _ in range(20)]
    done = [answer for answer in answers if answer.status == 200]
    usage = [json.loads(answer.body)["usage"]["total_tokens"] for answer in done]
    assert 0 < sum(usage) <= 60
    waiting = answers[len(done) :]
    assert waiting
    assert all(answer.pauses and answer.retry_after_s for answer in waiting)
    never = await application.run_row(CHAT, body(100), "ann")
    assert (never.status, never.retry_after_s, never.pauses) == (429, None, False)
    async with client(application.app) as http:
        interactive = await http.post(CHAT, content=body(9), headers=of("ann"))
        assert interactive.status_code == 200
