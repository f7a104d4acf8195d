"""The stored amount of an owner includes all content of that owner, except expired content."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.jobs.records import BatchStatus, StorageLimits, StoredAmount
from tests.jobs.test_response_store import a_response, an_item
from tests.jobs.test_stores import a_file, result, started_batch, store_file, stores_at

pytestmark = pytest.mark.anyio


async def test_stored_content_counts_for_its_owner_until_it_expires(where: str) -> None:
    async with stores_at(where) as stores:
        sizes, files, book = stores.storage, stores.files, stores.ledger()
        batch = await started_batch(stores, book)  # the input has one byte
        assert await sizes.stored("") == StoredAmount(num_bytes=1, num_files=1)
        await book.record(batch, [result(1), result(2, is_ok=False)])  # two bytes each; the end adds files
        assert await sizes.stored("") == StoredAmount(num_bytes=5, num_files=1)
        await book.finish(batch.id, BatchStatus.EXPIRED)
        assert await sizes.stored("") == StoredAmount(num_bytes=5, num_files=3)

        await store_file(files, a_file(8, owner="ann", expires_at=200), b"abc")
        stores.now_s = 199
        assert await sizes.stored("ann") == StoredAmount(num_bytes=3, num_files=1)
        stores.now_s = 200
        assert await sizes.stored("ann") == StoredAmount()

        response = msgspec.structs.replace(a_response("a"), owner="bob", response=b"1234", written=b"56")
        await stores.responses.add(response, [an_item("a1")])
        size = 6 + len(an_item("a1").content)
        assert await sizes.stored("bob") == StoredAmount(num_bytes=size)
        assert await sizes.stored("") == StoredAmount(num_bytes=5, num_files=3)
        stores.now_s = response.expires_at
        assert await sizes.stored("bob") == StoredAmount()


def test_a_limit_may_be_reached_but_not_exceeded() -> None:
    limits = StorageLimits(max_bytes=10, max_files=2)
    assert limits.excess(StoredAmount(num_bytes=10, num_files=2)) is None
    assert "bytes" in (limits.excess(StoredAmount(num_bytes=11)) or "")
    assert "files" in (limits.excess(StoredAmount(num_files=3)) or "")
    assert StorageLimits().excess(StoredAmount(num_bytes=2**60, num_files=2**30)) is None
