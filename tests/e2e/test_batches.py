"""The batch API: the official SDK, unchanged, against the real server process.

Objects of other keys, and ids that do not exist: tests/api/test_foreign_objects.py. Refused requests:
tests/api/refused.
"""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai.types import Batch

from tests.e2e.serving import sdk, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


def chat_row(number: int, **fields: object) -> dict[str, object]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"Row {number}."}], "max_tokens": 4}
    line = {"custom_id": f"row-{number}", "method": "POST", "url": CHAT}
    return {**line, "body": {**body, "temperature": 0, **fields}}


def slow_row(number: int) -> dict[str, object]:
    return chat_row(number, max_tokens=150, ignore_eos=True)


def jsonl(rows: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def upload(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=("rows.jsonl", content), purpose="batch").id


def create_batch(client: openai.OpenAI, content: bytes) -> Batch:
    file_id = upload(client, content)
    return client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")


def wait_for_end(client: openai.OpenAI, batch_id: str) -> Batch:
    ends = ("completed", "failed", "expired", "cancelled")
    wait_until(lambda: client.batches.retrieve(batch_id).status in ends)
    return client.batches.retrieve(batch_id)


def wait_for_rows(client: openai.OpenAI, batch_id: str, num_rows: int) -> None:
    wait_until(lambda: client.batches.retrieve(batch_id).request_counts.completed >= num_rows)


def answered_ids(client: openai.OpenAI, batch: Batch) -> list[object]:
    """Return the ids of the rows with an answer, in their order."""
    return [line["custom_id"] for line in lines_of(client, batch.output_file_id)]


def row_ids(number: int) -> list[object]:
    return [f"row-{n}" for n in range(number)]


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_a_batch_from_upload_to_output(client: openai.OpenAI) -> None:
    """Failed rows go to the error file. Wrong lines: tests/jobs/test_rows.py."""
    good = [chat_row(n) for n in range(20)]
    bad = [chat_row(20, temperature=9), chat_row(21, model="nobody")]
    file = client.files.create(file=("rows.jsonl", jsonl(good + bad)), purpose="batch")
    assert (file.object, file.purpose, file.bytes) == ("file", "batch", len(jsonl(good + bad)))
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"team": "a"}
    )
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"team": "a"})
    done = wait_for_end(client, batch.id)
    assert done.status == "completed", done.errors
    assert done.request_counts.to_dict() == {"total": 22, "completed": 20, "failed": 2}
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(times)  # type: ignore[type-var]
    lines = lines_of(client, done.output_file_id)
    assert [line["custom_id"] for line in lines] == row_ids(20)
    assert all(set(line) == {"id", "custom_id", "response", "error"} for line in lines)
    response = lines[7]["response"]
    assert response["status_code"] == 200
    alone = client.chat.completions.create(**good[7]["body"])  # type: ignore[call-overload]
    assert response["body"]["choices"][0]["message"]["content"] == alone.choices[0].message.content
    failed = [(line["custom_id"], line["response"]) for line in lines_of(client, done.error_file_id)]
    assert [(name, reply["status_code"], reply["body"]["error"]["param"]) for name, reply in failed] == [
        ("row-20", 400, "temperature"),
        ("row-21", 404, "model"),
    ]
    wrong = wait_for_end(client, create_batch(client, jsonl([good[0], good[0]])).id)
    assert wrong.status == "failed"
    assert [(e.line, e.code) for e in wrong.errors.data or []] == [(2, "duplicate_custom_id")]


def test_a_download_breaks_off_when_its_file_is_deleted(server: ServerProcess, client: openai.OpenAI) -> None:
    """The file is far larger than the socket buffers and the server's first read of the database."""
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
        with (
            tiny_server("--jobs-db", str(tmp_path / "jobs.db"), "--batch-concurrency", "4") as server,
            sdk(server) as client,
        ):
            batch_id = batch_id or create_batch(client, jsonl(rows)).id
            if kills == 2:
                done = wait_for_end(client, batch_id)
                assert done.status == "completed"
                lines = lines_of(client, done.output_file_id)
                break
            kills += 1
            wait_for_rows(client, batch_id, 30 * kills)
            server.stop(signal.SIGKILL)
    assert [line["custom_id"] for line in lines] == row_ids(80)
    tokens = [line["response"]["body"]["usage"]["completion_tokens"] for line in lines]
    assert tokens == [2 + n % 7 for n in range(80)]
