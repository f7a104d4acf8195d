"""Backup of a running server's state, as docs/operations.md describes it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.e2e.serving import key_file, sdk, tiny_server
from tests.postgres import PostgresServer
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.slow]
KEY = "secret-of-one"
DERIVED = {"model": "pirate", "from": "tiny", "system": "Talk like a pirate.", "stream": False}


def stateful_server(jobs_db: str, settings: Path, home: Path) -> ServerProcess:
    env = {**os.environ, "XDG_DATA_HOME": str(home)}
    return tiny_server("--jobs-db", jobs_db, "--config", str(settings), "--allow-pull", env=env)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_of_a_running_server_is_whole(tmp_path: Path, kind: str) -> None:
    database, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    keys = key_file(tmp_path / "keys.toml", {KEY: "admin = true"})
    settings = tmp_path / "settings.toml"
    settings.write_text(f'api_keys = "{keys}"\ntemperature = 0.25\n')
    with nullcontext() if kind == "sqlite" else PostgresServer() as postgres:
        url = str(database) if postgres is None else postgres.new_database()
        with stateful_server(url, settings, tmp_path / "a") as server, sdk(server, KEY) as client:
            response = client.responses.create(model="tiny", input="Hello", max_output_tokens=5)
            file_id = client.files.create(file=("rows.jsonl", b"{}"), purpose="batch").id
            conversation = client.conversations.create(items=[{"role": "user", "content": "Hi."}])
            server.post("/api/create", json=DERIVED, headers={"x-api-key": KEY}).raise_for_status()
            usage = client.get("/usage", cast_to=object)
            if postgres is None:
                connection = sqlite3.connect(database)
                connection.execute("VACUUM INTO ?", (str(backup),))
                connection.close()
                restored = str(backup)
            else:
                restored = postgres.restored(url)
            models = "openai-cpu-server/models.json"
            (tmp_path / "b/openai-cpu-server").mkdir(parents=True)
            shutil.copy(tmp_path / "a" / models, tmp_path / "b" / models)
            copies = [shutil.copy(path, path.with_suffix(".copy.toml")) for path in (keys, settings)]
        with stateful_server(restored, copies[1], tmp_path / "b") as server, sdk(server, KEY) as client:
            assert client.responses.retrieve(response.id) == response
            assert client.files.content(file_id).read() == b"{}"
            assert client.conversations.retrieve(conversation.id) == conversation
            assert client.get("/usage", cast_to=object) == usage
            assert "pirate" in {model.id for model in client.models.list()}
