"""Rights that a real engine gives up. It serves without them."""

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


def thread_statuses(process: psutil.Process, field: str) -> set[str]:
    values = set()
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        values.add(lines[field].strip())
    return values


def test_an_engine_knows_no_secrets_and_has_few_rights() -> None:
    env = os.environ | SECRETS | {"OMP_WAIT_POLICY": "passive"}
    del env["OCS_LIMITS_URL"]
    with ServerProcess("--model", str(tiny_model_path()), env=env, is_fresh=True) as server:
        assert any("sandbox: " in line and "no new privileges" in line for line in server.lines)
        environment = server.engine.environ()
        assert not {*SECRETS} & {*environment}
        assert "secret" not in "".join(environment.values())
        assert (environment["GGML_NO_BACKTRACE"], environment["OMP_WAIT_POLICY"]) == ("1", "passive")
        assert thread_statuses(server.engine, "NoNewPrivs") == {"1"}
        if any("seccomp" in line.partition("(")[0] for line in server.lines if "sandbox: " in line):
            assert thread_statuses(server.engine, "Seccomp") == {"2"}
        assert {int(caps, 16) & ~0b110 for caps in thread_statuses(server.engine, "CapEff")} == {0}
        assert server.get("/v1/models", headers=AUTH).status_code == 200


def test_the_sandbox_can_be_switched_off() -> None:
    with ServerProcess("--model", str(tiny_model_path()), "--sandbox", "off") as server:
        assert any(line.endswith("sandbox: off\n") for line in server.lines)
        assert thread_statuses(server.engine, "NoNewPrivs") == {"0"}
        assert thread_statuses(server.engine, "Seccomp") == {"0"}


def test_the_sandbox_opens_all_parts_of_a_model_behind_links(tmp_path: Path) -> None:
    """The files are laid out as in the hub's cache: links into a folder of blobs."""
    blobs, links = tmp_path / "blobs", tmp_path / "links"
    for folder in (blobs, links):
        folder.mkdir()
    parts = split(tiny_model_path(), tmp_path / "m.gguf", tensors_per_part=9)
    for number, part in enumerate(parts):
        (links / part.name).symlink_to(part.rename(blobs / f"{number}"))
    with ServerProcess("--model", str(links / parts[0].name), "--served-model-name", "m") as server:
        body = {"prompt": "The quick brown fox " * 30, "max_tokens": 4, "temperature": 0}
        assert server.post("/v1/completions", json=body).status_code == 200
