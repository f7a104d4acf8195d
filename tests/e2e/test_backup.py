"""The jobs database, backed up as docs/operations.md says while a server uses it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.e2e.serving import sdk, tiny_server

pytestmark = [pytest.mark.native, pytest.mark.slow]


def test_a_backup_of_a_running_server_is_whole(tmp_path: Path) -> None:
    database, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    with tiny_server("--jobs-db", str(database)) as server, sdk(server) as client:
        response = client.responses.create(model="tiny", input="Hello", max_output_tokens=5)
        file_id = client.files.create(file=("rows.jsonl", b"{}"), purpose="batch").id
        connection = sqlite3.connect(database)
        connection.execute("VACUUM INTO ?", (str(backup),))
        connection.close()
    with tiny_server("--jobs-db", str(backup)) as server, sdk(server) as client:
        assert client.responses.retrieve(response.id) == response
        assert client.files.content(file_id).read() == b"{}"
