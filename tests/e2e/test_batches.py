"""The batch API: the official SDK, unchanged, against the real server process."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.e2e.serving import key_file, sdk, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat_row(number: int, **fields: object) -> dict[str, object]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"Row {number}."}],
        "max_tokens": 4,
        "temperature": 0,
        **fields,
    }
    return {"custom_id": f"row-{number}", "method": "POST", "url": CHAT, "body": body}


def slow_row(number: int) -> dict[str, object]:
    return chat_row(number, max_tokens=150, ignore_eos=True)


def jsonl(rows: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def upload(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=("rows.jsonl", content), purpose="batch").id


def begin(client: openai.OpenAI, content: bytes, window: str = "24h", endpoint: str = CHAT) -> Batch:
    return client.batches.create(
        input_file_id=upload(client, content),
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
    )


def ended(client: openai.OpenAI, batch_id: str) -> Batch:
    ends = ("completed", "failed", "expired", "cancelled")
    wait_until(lambda: client.batches.retrieve(batch_id).status in ends)
    return client.batches.retrieve(batch_id)


def until_some_are_done(client: openai.OpenAI, batch_id: str, num_rows: int) -> None:
    def are_done() -> bool:
        counts = client.batches.retrieve(batch_id).request_counts
        return counts is not None and counts.completed >= num_rows

    wait_until(are_done)


def counted(batch: Batch) -> tuple[int, int, int]:
    """Rows in all, completed and failed."""
    counts = batch.request_counts
    return counts.total, counts.completed, counts.failed


def ids_of(client: openai.OpenAI, batch: Batch) -> list[object]:
    """Of the rows with an answer, in its order."""
    return [line["custom_id"] for line in lines_of(client, batch.output_file_id)]


def names(number: int) -> list[object]:
    return [f"row-{n}" for n in range(number)]


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def new_server(database: Path | str, *options: str) -> ServerProcess:
    return tiny_server("--jobs-db", str(database), *options)


@pytest.fixture(scope="module")
def one_row_at_a_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServerProcess, Iterator[str]]]:
    """A server, and keys that nobody has used so far."""
    folder, keys = tmp_path_factory.mktemp("batches"), ["k1", "k2", "k3", "k4", "k5", "k6"]
    file = key_file(folder / "keys.toml", dict.fromkeys(keys, ""))
    options = ("--batch-concurrency", "1", "--api-keys", str(file))
    with new_server(folder / "jobs.db", *options) as server:
        yield server, iter(keys)


@pytest.fixture
def busy(one_row_at_a_time: tuple[ServerProcess, Iterator[str]]) -> Iterator[openai.OpenAI]:
    """A holder of a key of its own, who sees no files and batches but its own."""
    server, keys = one_row_at_a_time
    with sdk(server, next(keys)) as client:
        yield client


def test_a_batch_from_upload_to_output(client: openai.OpenAI) -> None:
    rows = [chat_row(n) for n in range(20)]
    file = client.files.create(file=("rows.jsonl", jsonl(rows)), purpose="batch")
    assert (file.object, file.purpose, file.filename) == ("file", "batch", "rows.jsonl")
    assert file.bytes == len(jsonl(rows))
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"team": "a"}
    )
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"team": "a"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    done = ended(client, batch.id)
    assert done.status == "completed", done.errors
    assert counted(done) == (20, 20, 0)
    assert done.error_file_id is None
    assert (
        done.created_at <= (done.in_progress_at or 0) <= (done.finalizing_at or 0) <= (done.completed_at or 0)
    )
    lines = lines_of(client, done.output_file_id)
    assert [line["custom_id"] for line in lines] == names(20)
    assert len({line["id"] for line in lines}) == 20
    assert all(set(line) == {"id", "custom_id", "response", "error"} for line in lines)
    response = lines[7]["response"]
    assert response["status_code"] == 200
    assert response["request_id"].startswith("req_")
    alone = client.chat.completions.create(**rows[7]["body"])  # type: ignore[call-overload]
    assert response["body"]["choices"][0]["message"]["content"] == alone.choices[0].message.content
    assert done.usage.output_tokens == sum(
        line["response"]["body"]["usage"]["completion_tokens"] for line in lines
    )
    output = client.files.retrieve(done.output_file_id or "")
    assert output.purpose == "batch_output"
    assert output.bytes == len(client.files.content(output.id).content)


def test_rows_that_fail_go_to_the_error_file(client: openai.OpenAI) -> None:
    rows = [
        chat_row(0),
        chat_row(1, temperature=9),
        chat_row(2, stream=True),
        chat_row(3, model="nobody"),
        chat_row(4, max_tokens=10**6),
        chat_row(5, priority="interactive"),
    ]
    done = ended(client, begin(client, jsonl(rows)).id)
    assert done.status == "completed"
    assert counted(done) == (6, 2, 4)
    assert ids_of(client, done) == ["row-0", "row-5"]
    errors = lines_of(client, done.error_file_id)
    seen = [
        (line["custom_id"], line["response"]["status_code"], line["response"]["body"]["error"]["param"])
        for line in errors
    ]
    assert seen == [
        ("row-1", 400, "temperature"),
        ("row-2", 400, "stream"),
        ("row-3", 404, "model"),
        ("row-4", 400, "messages"),
    ]


def test_bad_lines_fail_the_batch_by_number(client: openai.OpenAI) -> None:
    good = json.dumps(chat_row(0))
    content = [
        good,
        "{not json",
        "",
        good,
        json.dumps({**chat_row(2), "method": "GET"}),
        json.dumps({**chat_row(3), "url": COMPLETIONS}),
        json.dumps({"custom_id": "x", "method": "POST", "url": CHAT}),
    ]
    failed = ended(client, begin(client, "\n".join(content).encode()).id)
    assert failed.status == "failed"
    assert failed.failed_at is not None
    assert [(e.line, e.code, e.param) for e in failed.errors.data or []] == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "invalid_method", "method"),
        (6, "mismatched_endpoint", "url"),
        (7, "missing_required_parameter", "body"),
    ]
    assert failed.output_file_id is None
    assert failed.error_file_id is None


def test_files_are_listed_and_deleted_and_batches_are_listed_the_newest_first(busy: openai.OpenAI) -> None:
    ids = [upload(busy, jsonl([chat_row(n)])) for n in range(5)]
    assert [file.id for file in busy.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in busy.files.list(limit=2, order="asc", after=ids[0])] == ids[1:]
    assert [file.id for file in busy.files.list(purpose="batch_output")] == []
    assert busy.files.content(ids[0]).content == jsonl([chat_row(0)])
    gone = busy.files.delete(ids[2])
    assert (gone.id, gone.deleted, gone.object) == (ids[2], True, "file")
    with pytest.raises(openai.NotFoundError, match=f"No such File object: {ids[2]}"):
        busy.files.retrieve(ids[2])
    assert [file.id for file in busy.files.list()] == [ids[4], ids[3], ids[1], ids[0]]
    begun = [begin(busy, jsonl([chat_row(n)])).id for n in range(5)]
    assert [batch.id for batch in busy.batches.list(limit=2)] == begun[::-1]


def test_a_running_batch_is_cancelled_and_keeps_what_is_done(busy: openai.OpenAI) -> None:
    batch = begin(busy, jsonl([slow_row(n) for n in range(500)]))
    until_some_are_done(busy, batch.id, 2)
    with pytest.raises(openai.ConflictError, match="has not ended"):
        busy.files.delete(batch.input_file_id)
    assert busy.batches.cancel(batch.id).status == "cancelling"
    done = ended(busy, batch.id)
    assert done.status == "cancelled"
    assert done.cancelled_at is not None
    _, completed, _ = counted(done)
    assert 2 <= completed < 500
    assert len(lines_of(busy, done.output_file_id)) == completed
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'cancelled'"):
        busy.batches.cancel(batch.id)
    assert busy.files.delete(batch.input_file_id).deleted


def test_a_window_that_closes_names_the_rows_that_did_not_run(busy: openai.OpenAI) -> None:
    batch = begin(busy, jsonl([slow_row(n) for n in range(500)]), window="1s")
    done = ended(busy, batch.id)
    assert done.status == "expired"
    assert done.expired_at is not None
    assert done.expired_at >= batch.created_at + 1
    _, completed, failed = counted(done)
    assert (completed + failed, failed > 0) == (500, True)
    late = lines_of(busy, done.error_file_id)
    assert late[-1]["custom_id"] == "row-499"
    assert late[-1]["response"] is None
    assert late[-1]["error"]["code"] == "batch_expired"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra_body": {"colour": "red"}}, "colour"),
    ],
)
def test_a_wrong_batch_is_refused_by_name(
    client: openai.OpenAI, change: dict[str, object], param: str
) -> None:
    asked: dict[str, object] = {
        "input_file_id": upload(client, b"x\n"),
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    with pytest.raises(openai.BadRequestError) as refusal:
        client.batches.create(**{**asked, **change})  # type: ignore[call-overload]
    assert refusal.value.param == param


def test_another_purpose_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'fine-tune' is not supported") as refusal:
        client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    assert refusal.value.param == "purpose"


def test_an_input_file_must_exist(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="No such File object: file-1") as refusal:
        client.batches.create(input_file_id="file-1", endpoint=CHAT, completion_window="24h")
    assert refusal.value.param == "input_file_id"
    for listing in (client.files.list, client.batches.list):
        with pytest.raises(openai.NotFoundError) as refusal:
            listing(after="no-such-id")
        assert refusal.value.param == "after"
    with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_1'"):
        client.batches.retrieve("batch_1")


def test_uploads_have_a_limit_of_their_own(tmp_path: Path) -> None:
    with new_server("sqlite://", "--max-file-mb", "2", "--max-body-mb", "1") as server, sdk(server) as client:
        assert upload(client, b"x" * 2 * 2**20)
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.putrequest("POST", "/v1/files")
        connection.putheader("content-length", str(3 * 2**20))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


def test_a_file_that_is_deleted_while_it_is_read_is_cut(server: ServerProcess, client: openai.OpenAI) -> None:
    """Far more than sockets and the server's first look at the database take."""
    content, num_lines = b"x" * 40 * 2**20, len(server.lines)
    file_id = upload(client, content)
    reader = http.client.HTTPConnection(server.url.removeprefix("http://"))
    reader.request("GET", f"/v1/files/{file_id}/content", headers={"x-request-id": "cut"})
    answer = reader.getresponse()
    assert answer.getheader("content-length") == str(len(content))
    assert client.files.delete(file_id).deleted
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    reader.close()
    assert client.models.list().data
    assert "error=JobObjectNotFound" in server.wait_for("(id=cut .*)")
    assert "Traceback" not in "".join(server.lines[num_lines:])


def test_kill_9_of_the_whole_server_loses_and_repeats_no_row(tmp_path: Path) -> None:
    rows = [chat_row(n, max_tokens=2 + n % 7, ignore_eos=True) for n in range(80)]
    batch_id, kills = "", 0
    while True:
        with new_server(tmp_path / "jobs.db", "--batch-concurrency", "4") as server, sdk(server) as client:
            batch_id = batch_id or begin(client, jsonl(rows)).id
            if kills == 2:
                done = ended(client, batch_id)
                assert done.status == "completed"
                lines = lines_of(client, done.output_file_id)
                break
            kills += 1
            until_some_are_done(client, batch_id, 30 * kills)
            server.stop(signal.SIGKILL)
    assert [line["custom_id"] for line in lines] == names(80)
    assert counted(done) == (80, 80, 0)
    tokens = [line["response"]["body"]["usage"]["completion_tokens"] for line in lines]
    assert tokens == [2 + n % 7 for n in range(80)]


def test_an_orderly_stop_leaves_a_batch_that_goes_on(tmp_path: Path) -> None:
    with new_server(tmp_path / "jobs.db", "--batch-concurrency", "1") as server, sdk(server) as client:
        batch = begin(client, jsonl([chat_row(n, max_tokens=30, ignore_eos=True) for n in range(12)]))
        until_some_are_done(client, batch.id, 3)
        assert server.stop(signal.SIGTERM) == 0
    with new_server(tmp_path / "jobs.db") as server, sdk(server) as client:
        done = ended(client, batch.id)
        assert ids_of(client, done) == names(12)
        assert counted(done) == (12, 12, 0)
        assert "goes on" in "".join(server.lines)


@pytest.mark.slow
def test_two_servers_share_a_database_and_every_row_runs_once(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    with (
        new_server(database, "--batch-concurrency", "2") as one,
        new_server(database, "--batch-concurrency", "2") as two,
        sdk(one) as first,
        sdk(two) as second,
    ):
        batches = [begin(client, jsonl([chat_row(n) for n in range(16)])) for client in (first, second)]
        for batch in batches:
            assert ids_of(first, ended(second, batch.id)) == names(16)
        cancelled = begin(first, jsonl([slow_row(n) for n in range(200)]))
        until_some_are_done(second, cancelled.id, 1)
        second.batches.cancel(cancelled.id)
        assert ended(first, cancelled.id).status == "cancelled"


def test_files_and_batches_belong_to_the_key_that_made_them(
    one_row_at_a_time: tuple[ServerProcess, Iterator[str]],
) -> None:
    server, keys = one_row_at_a_time
    with sdk(server, next(keys)) as ann, sdk(server, next(keys)) as bob:
        batch = begin(ann, jsonl([chat_row(0)]))
        done = ended(ann, batch.id)
        assert done.status == "completed"
        assert (list(bob.files.list()), list(bob.batches.list())) == ([], [])
        for refused in (
            lambda: bob.files.content(batch.input_file_id),
            lambda: bob.files.delete(batch.input_file_id),
            lambda: bob.files.content(done.output_file_id or ""),
            lambda: bob.files.delete(done.output_file_id or ""),
            lambda: bob.batches.cancel(batch.id),
            lambda: bob.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                refused()
        assert len(list(ann.files.list())) == 2
