"""What a real engine gives up, and that it serves without it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.llama.odd_models import split
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = [
    pytest.mark.native,
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="landlock and seccomp are Linux's"),
]
SECRETS = {
    "OCS_API_KEY": "of-the-server",
    "OCS_LIMITS_URL": "",
    "HF_TOKEN": "hf_secret",
    "DATABASE_URL": "postgresql://me:secret@db/x",
}
AUTH = {"authorization": "Bearer of-the-server"}


def threads(process: psutil.Process, field: str) -> set[str]:
    found = set()
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        found.add(lines[field].strip())
    return found


def test_an_engine_knows_no_secrets_and_has_few_rights() -> None:
    env = os.environ | SECRETS | {"OMP_WAIT_POLICY": "passive"}
    del env["OCS_LIMITS_URL"]
    with ServerProcess("--model", str(tiny_model_path()), env=env, is_fresh=True) as server:
        assert any("sandbox: " in line and "no new privileges" in line for line in server.lines)
        inherited = server.engine.environ()
        assert not {*SECRETS} & {*inherited}
        assert "secret" not in "".join(inherited.values())
        assert (inherited["GGML_NO_BACKTRACE"], inherited["OMP_WAIT_POLICY"]) == ("1", "passive")
        assert threads(server.engine, "NoNewPrivs") == {"1"}
        if any("seccomp" in line.partition("(")[0] for line in server.lines if "sandbox: " in line):
            assert threads(server.engine, "Seccomp") == {"2"}
        assert {int(caps, 16) & ~0b110 for caps in threads(server.engine, "CapEff")} == {0}
        assert server.get("/v1/models", headers=AUTH).status_code == 200


def test_it_can_be_switched_off() -> None:
    with ServerProcess("--model", str(tiny_model_path()), "--sandbox", "off") as server:
        assert any(line.endswith("sandbox: off\n") for line in server.lines)
        assert threads(server.engine, "NoNewPrivs") == {"0"}
        assert threads(server.engine, "Seccomp") == {"0"}


def test_all_parts_of_a_model_and_links_to_them_are_open(tmp_path: Path) -> None:
    """As the hub's cache has them: links into a folder of blobs."""
    blobs, shown = tmp_path / "blobs", tmp_path / "shown"
    for folder in (blobs, shown):
        folder.mkdir()
    parts = split(tiny_model_path(), tmp_path / "m.gguf", tensors_per_part=9)
    for number, part in enumerate(parts):
        (shown / part.name).symlink_to(part.rename(blobs / f"{number}"))
    with ServerProcess("--model", str(shown / parts[0].name), "--served-model-name", "m") as server:
        body = {"prompt": "The quick brown fox " * 30, "max_tokens": 4, "temperature": 0}
        assert server.post("/v1/completions", json=body).status_code == 200
