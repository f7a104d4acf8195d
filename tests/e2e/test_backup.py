"""A server's state, backed up as docs/operations.md says while the server uses it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.e2e.serving import sdk, tiny_server
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.native, pytest.mark.slow]
KEY = "secret-of-one"
DERIVED = {"model": "pirate", "from": "tiny", "system": "Talk like a pirate.", "stream": False}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_of_a_running_server_is_whole(tmp_path: Path, kind: str) -> None:
    database, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    keys, settings = tmp_path / "keys.toml", tmp_path / "settings.toml"
    keys.write_text(f'[keys.one]\nsha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"\nadmin = true\n')
    settings.write_text(f'api_keys = "{keys}"\ntemperature = 0.25\n')
    with nullcontext() if kind == "sqlite" else PostgresServer() as postgres:
        url = str(database) if postgres is None else postgres.new_database()
        with (
            tiny_server(
                "--jobs-db", url, "--config", str(settings), "--allow-pull", env=home(tmp_path / "a")
            ) as server,
            sdk(server, KEY) as client,
        ):
            response = client.responses.create(model="tiny", input="Hello", max_output_tokens=5)
            file_id = client.files.create(file=("rows.jsonl", b"{}"), purpose="batch").id
            conversation = client.conversations.create(items=[{"role": "user", "content": "Hi."}])
            server.post(
                "/api/create", json=DERIVED, headers={"Authorization": f"Bearer {KEY}"}
            ).raise_for_status()
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
        with (
            tiny_server(
                "--jobs-db", restored, "--config", str(copies[1]), "--allow-pull", env=home(tmp_path / "b")
            ) as server,
            sdk(server, KEY) as client,
        ):
            assert client.responses.retrieve(response.id) == response
            assert client.files.content(file_id).read() == b"{}"
            assert client.conversations.retrieve(conversation.id) == conversation
            assert client.get("/usage", cast_to=object) == usage
            assert "pirate" in {model.id for model in client.models.list()}


def home(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_DATA_HOME": str(folder)}
