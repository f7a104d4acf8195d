"""Batches in PostgreSQL: a database that becomes unavailable, and ids with a NUL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.serving import tiny_server
from tests.e2e.test_batches import (
    answered_ids,
    chat_row,
    create_batch,
    jsonl,
    row_ids,
    slow_row,
    wait_for_end,
    wait_for_rows,
)
from tests.postgres import PostgresServer
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> Iterator[ServerProcess]:
    with tiny_server("--batch-concurrency", "4", "--jobs-db", postgres.new_database()) as server:
        yield server


def test_an_unavailable_database_is_503_and_its_batches_continue_afterwards(
    postgres: PostgresServer, server: ServerProcess, client: openai.OpenAI
) -> None:
    batch = create_batch(client, jsonl([slow_row(number) for number in range(12)]))
    wait_for_rows(client, batch.id, 2)
    postgres.stop()
    try:
        for _ in range(2):
            refused = server.get("/v1/batches")
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "jobs_unavailable"
            assert int(refused.headers["retry-after"]) > 0
        with pytest.raises(openai.InternalServerError) as upload:
            client.files.create(file=("rows.jsonl", jsonl([chat_row(0)])), purpose="batch")
        assert upload.value.status_code == 503
        body = {"prompt": "x", "max_tokens": 3}
        assert server.post("/v1/completions", json=body).status_code == 200
        assert server.get("/ready").status_code == 200
        assert any("the jobs database failed: " in line for line in server.lines)
        server.wait_for("(the jobs database is unavailable): ")
    finally:
        postgres.start()
    server.wait_for("(the jobs database is back)")
    done = wait_for_end(client, batch.id)
    assert done.status == "completed"
    assert Counter(answered_ids(client, done)) == Counter(row_ids(12))


def test_ids_with_a_nul_do_not_exist(server: ServerProcess) -> None:
    body = {"input_file_id": "a\0", "endpoint": "/v1/completions", "completion_window": "1h"}
    for nul in ("%00", "a%00b"):
        answers = [
            server.get(f"/v1/files/{nul}"),
            server.get(f"/v1/batches/{nul}"),
            server.get(f"/v1/batches?after={nul}"),
            server.delete(f"/v1/files/{nul}"),
            server.post("/v1/batches", json=body),
        ]
        # In a path an id with a NUL is refused before it is looked up.
        assert [answer.status_code for answer in answers] == [400, 400, 404, 400, 404]
    form, rows = {"purpose": "batch"}, {"file": ("rows\0.jsonl", jsonl([chat_row(0)]))}
    upload = server.post("/v1/files", data=form, files=rows)
    assert upload.status_code == 200, upload.text
    fields = {"metadata": {"a": "\0"}, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
    batch = server.post("/v1/batches", json={"input_file_id": upload.json()["id"], **fields})
    assert batch.status_code == 200, batch.text
    assert batch.json()["metadata"] == {"a": "\0"}
