"""compose.yaml is well formed, and the files that it names exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import Settings, revealed
from tests.deploy import ROOT

DEPLOY = ROOT / "deploy"
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DEPLOY / "compose.yaml").read_text())
"""Text of compose.yaml with the default values of its variables."""
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]


def test_it_follows_the_specification() -> None:
    compose = pytest.importorskip("compose_spec").PyCompose
    assert sorted(compose.from_yaml(TEXT).service_names()) == sorted(SERVICES)


def test_the_servers_variables_are_options() -> None:
    names = {name for name in SERVICES["server"]["environment"] if name.startswith("OCS_")}
    options = {name.removeprefix("OCS_").lower() for name in names - {"OCS_SECRETS_DIR"}}
    assert options <= set(Settings.model_fields)


@pytest.mark.parametrize("name", SERVICES)
def test_files_of_a_service_exist(name: str) -> None:
    sources = [volume.split(":")[0] for volume in SERVICES[name].get("volumes", [])]
    files = [source for source in sources if source.startswith("./") and source != "./models"]
    assert [source for source in files if not (DEPLOY / source).exists()] == []
    assert {source for source in sources if "/" not in source} <= set(COMPOSE["volumes"])
    assert set(SERVICES[name].get("secrets", [])) <= set(COMPOSE["secrets"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_modest(name: str) -> None:
    service = SERVICES[name]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["restart"] == "unless-stopped"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    if name not in ("server", "collector"):  # one has its image's; compose.yaml says why the other has none
        assert service["healthcheck"]["test"]
    assert not re.match(r"[^/]*[.:][^/]*/", service["image"]), "the image names a registry"


def test_databases_reach_nothing_beyond_the_machine() -> None:
    assert COMPOSE["networks"]["back"]["internal"]
    assert SERVICES["postgres"]["networks"] == SERVICES["redis"]["networks"] == ["back"]


def test_secrets_are_made_once_and_open_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = shutil.copy(DEPLOY / "make-secrets", tmp_path)
    subprocess.run([script], check=True, stdout=subprocess.DEVNULL)
    folder = tmp_path / "secrets"
    assert {f"secrets/{path.name}" for path in folder.iterdir()} - {"secrets/api_key"} == {
        secret["file"] for secret in COMPOSE["secrets"].values()
    }
    assert folder.stat().st_mode & 0o077 == 0
    first = {path.name: path.read_text() for path in folder.iterdir()}
    subprocess.run([script], check=True, stdout=subprocess.DEVNULL)
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    assert len(set(first.values())) == len(first)
    (folder / "api_key").unlink()  # for clients: not among the secrets of the container
    monkeypatch.setenv("OCS_SECRETS_DIR", str(folder))
    monkeypatch.setenv("OCS_API_KEYS", str(folder / "keys.toml"))
    settings = read_settings([])
    assert first["postgres_password"] in (revealed(settings.jobs_db) or "")
    assert first["redis_password"] in (revealed(settings.limits_url) or "")
