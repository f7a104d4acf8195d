"""Names that begin like options and are none: a misspelt key must not leave a server open."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.errors import StartupError


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("OCS_APIKEY", ": did you mean OCS_API_KEY?"),
        ("ocs_apikeys", ": did you mean OCS_API_KEYS?"),
        ("OCS_MAX_SEQUENCES", ": did you mean OCS_MAX_SEQS?"),
        ("OCS_QQQQQQ", ""),
    ],
)
def test_a_name_that_is_no_option_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, guess: str
) -> None:
    monkeypatch.setenv(name, "secret")
    with pytest.raises(StartupError) as of_variable:
        read_settings([])
    assert str(of_variable.value) == f"{name} is not an option of this server{guess}"
    monkeypatch.delenv(name)
    (tmp_path / name).write_text("secret")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    with pytest.raises(StartupError, match=f"{name} is not an option"):
        read_settings([])


@pytest.mark.parametrize(
    "name",
    ["OCS_SERVICE_HOST", "OCS_SERVICE_PORT_HTTP", "OCS_PORT_8000_TCP_ADDR", "OCS_GPU", "OCSX", "XOCS_A"],
)
def test_names_of_kubernetes_and_of_others_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8000")
    assert read_settings([]).port == 8000


@pytest.mark.parametrize(
    "name", ["api_key", "API-KEYS", "ocs-api-key", "ocs.api.key", "ssl.keyfile", "limits-url"]
)
def test_a_secret_by_another_name_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The server would start without it."""
    (tmp_path / name).write_text("secret")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    meant = "OCS_" + name.upper().replace("-", "_").replace(".", "_").removeprefix("OCS_")
    with pytest.raises(
        StartupError, match=f"{name} is not an option of this server: did you mean {meant}[?]"
    ):
        read_settings([])


@pytest.mark.parametrize("name", ["..data", "..2026_11_29", "db_password", "tls.crt", "port"])
def test_secrets_of_others_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    assert read_settings([]).port == 8000
