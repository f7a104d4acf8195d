"""What is stored of an owner: everything that takes room, and nothing that is another's or has expired."""

from __future__ import annotations

import msgspec

from openai_cpu_server.jobs.records import BatchStatus, StorageLimits, StoredAmount
from openai_cpu_server.jobs.responses import ResponseStore
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.jobs.store.files import FileStore
from openai_cpu_server.jobs.store.storage import SizeStore
from tests.jobs.test_response_store import a_response, an_item
from tests.jobs.test_stores import a_file as file_of
from tests.jobs.test_stores import begun, ledger, result, store_file


def test_all_that_is_stored_is_counted_for_its_owner_as_long_as_it_is_there(where: str) -> None:
    database = open_database(where)
    sizes, files = SizeStore(database), FileStore(database)
    shelf, book = ResponseStore(database), ledger(database)
    batch = begun(database, book)  # its input has a byte
    assert sizes.stored("", 100) == StoredAmount(num_bytes=1, num_files=1)
    book.record(batch, [result(1), result(2, is_ok=False)])  # two bytes each, files when it ends
    assert sizes.stored("", 100) == StoredAmount(num_bytes=5, num_files=1)
    book.finish(batch.id, BatchStatus.EXPIRED, now_s=101)
    assert sizes.stored("", 100) == StoredAmount(num_bytes=5, num_files=3)

    store_file(files, file_of(8, owner="ann", expires_at=200), b"abc")
    assert sizes.stored("ann", 199) == StoredAmount(num_bytes=3, num_files=1)
    assert sizes.stored("ann", 200) == StoredAmount()

    response = msgspec.structs.replace(a_response("a"), owner="bob", response=b"1234", written=b"56")
    shelf.add(response, [an_item("a1")])
    size = 6 + len(an_item("a1").content)
    assert sizes.stored("bob", 100) == StoredAmount(num_bytes=size)
    assert sizes.stored("bob", response.expires_at) == StoredAmount()
    assert sizes.stored("", 100) == StoredAmount(num_bytes=5, num_files=3)
    database.close()


def test_a_limit_is_what_may_be_there_and_not_one_more() -> None:
    limits = StorageLimits(max_bytes=10, max_files=2)
    assert limits.excess(StoredAmount(num_bytes=10, num_files=2)) is None
    assert "bytes" in (limits.excess(StoredAmount(num_bytes=11)) or "")
    assert "files" in (limits.excess(StoredAmount(num_files=3)) or "")
    assert StorageLimits().excess(StoredAmount(num_bytes=2**60, num_files=2**30)) is None
