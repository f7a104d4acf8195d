"""Misspelt names of options are refused: a misspelt key must not leave a server open."""

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
def test_a_name_that_is_not_an_option_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, guess: str
) -> None:
    monkeypatch.setenv(name, "secret")
    with pytest.raises(StartupError) as error:
        read_settings([])
    assert str(error.value) == f"{name} is not an option of this server{guess}"
    monkeypatch.delenv(name)
    (tmp_path / name).write_text("secret")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    with pytest.raises(StartupError, match=f"{name} is not an option"):
        read_settings([])


@pytest.mark.parametrize(
    "name",
    ["OCS_SERVICE_HOST", "OCS_SERVICE_PORT_HTTP", "OCS_PORT_8000_TCP_ADDR", "OCS_GPU", "OCSX", "XOCS_A"],
)
def test_names_of_kubernetes_and_other_programs_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8000")
    assert read_settings([]).port == 8000


@pytest.mark.parametrize(
    "name", ["api_key", "API-KEYS", "ocs-api-key", "ocs.api.key", "ssl.keyfile", "limits-url"]
)
def test_a_misspelt_secret_ends_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Refuse the start, because the server would run without the secret."""
    (tmp_path / name).write_text("secret")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    expected = "OCS_" + name.upper().replace("-", "_").replace(".", "_").removeprefix("OCS_")
    with pytest.raises(
        StartupError, match=f"{name} is not an option of this server: did you mean {expected}[?]"
    ):
        read_settings([])


@pytest.mark.parametrize("name", ["..data", "..2026_11_29", "db_password", "tls.crt", "port"])
def test_secrets_of_other_programs_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    assert read_settings([]).port == 8000
