"""Where options come from, and what is said about wrong ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import StartupError
from openai_cpu_server.settings import read_settings, revealed, tune_engines


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCS_CONFIG", "OCS_PORT", "OCS_MODEL"):
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    settings = read_settings([])
    assert (settings.model, settings.port, settings.priority) == ([], 8000, Priority.INTERACTIVE)
    options = settings.engine_options(Path("m.gguf"), cache_bytes=0)
    assert (options.kv_tokens, options.kv_type, options.repack) == (None, "f16", None)


def test_the_command_line_beats_the_environment_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('port = 1\nmodel = "file"\nhost = "file"\n')
    monkeypatch.setenv("OCS_PORT", "2")
    monkeypatch.setenv("OCS_MODEL", "environment")
    settings = read_settings(["--config", str(config), "--port", "3"])
    assert (settings.port, settings.model, settings.host) == (3, ["environment"], "file")


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text("max_seqs = 7\n")
    monkeypatch.setenv("OCS_CONFIG", str(config))
    assert read_settings([]).max_seqs == 7


def test_secrets_may_be_files_between_the_environment_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container finds them in /run/secrets, among files for others."""
    files = {"ocs_jobs_db": "postgresql://me:secret@db/x\n", "ocs_port": "5", "keys.toml": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    config = tmp_path / "c.toml"
    config.write_text('jobs_db = "none"\nhost = "file"\n')
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("OCS_PORT", "2")
    settings = read_settings(["--config", str(config)])
    assert revealed(settings.jobs_db) == "postgresql://me:secret@db/x"
    assert (settings.port, settings.host) == (2, "file")
    assert "secret@" not in repr(settings)


def test_a_folder_of_secrets_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path / "none"))
    with pytest.raises(StartupError, match="OCS_SECRETS_DIR: there is no folder"):
        read_settings([])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "x"], "--port"),
        (["--cache-isolation", "salt"], "--cache-isolation"),
        (["--ctx-size", "1"], "--ctx-size"),
        (["--batch-floor", "2"], "--batch-floor"),
        (["--config", "/nowhere.toml"], "no configuration file"),
        (["--threads", "513"], "--threads"),
        (["--bogus"], "unrecognized arguments: --bogus .see openai-cpu-server serve --help"),
        (["--port"], "--port: expected one argument"),
        (["--interactive-step-ms", "130"], "--interactive-step-ms is gone: use --stream-rate and --stall-ms"),
        (["--batch-step-ms=800"], "--batch-step-ms is gone: use --batch-stall-ms"),
    ],
)
def test_wrong_options_are_named_in_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(StartupError, match=said) as error:
        read_settings(arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["port = ", "unknown_option = 1\n", 'port = "x"\n'])
def test_a_wrong_file_is_one_line_too(tmp_path: Path, content: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(content)
    with pytest.raises(StartupError) as error:
        read_settings(["--config", str(config)])
    assert "\n" not in str(error.value)


def test_options_that_are_gone_are_named_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("batch_step_ms = 800\n")
    with pytest.raises(StartupError, match="--batch-step-ms is gone: use --batch-stall-ms"):
        read_settings(["--config", str(config)])
    monkeypatch.setenv("OCS_INTERACTIVE_STEP_MS", "130")
    with pytest.raises(StartupError, match="--interactive-step-ms is gone"):
        read_settings([])


def test_repack_and_kv_type_reach_the_engine() -> None:
    options = read_settings(["--repack", "on", "--kv-type", "q8_0"]).engine_options(Path("m"), cache_bytes=0)
    assert (options.repack, options.kv_type) == (True, "q8_0")


def test_the_key_does_not_show() -> None:
    assert "hunter2" not in repr(read_settings(["--api-key", "hunter2"]))


def test_help_speaks_of_values_as_users_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--help"])
    shown = capsys.readouterr().out
    for words in ("--api-key KEY", "--port N", "--pin-prompt PATH", "--kv-type {auto,", "(default: on)"):
        assert words in shown
    for python in ("SecretStr", "list[", " str ", " int ", "null", "True", "default: []"):
        assert python not in shown


def test_engines_inherit_what_makes_steps_fast_but_for_what_a_user_has_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"GOMP_SPINCOUNT": "7"})
    tune_engines()
    assert os.environ == {
        "GOMP_SPINCOUNT": "7",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    said = {
        "OMP_WAIT_POLICY": "active",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
        "OPENBLAS_NUM_THREADS": "2",
    }
    monkeypatch.setattr(os, "environ", dict(said))
    tune_engines()
    assert os.environ == said


def test_trusted_proxies_are_addresses_and_networks() -> None:
    settings = read_settings(["--trusted-proxy", "127.0.0.1", "--trusted-proxy", "2001:db8::/32"])
    assert [str(network) for network in settings.trusted_proxy] == ["127.0.0.1/32", "2001:db8::/32"]
    with pytest.raises(StartupError, match=r"^--trusted-proxy: .*'proxy\.example' does not appear"):
        read_settings(["--trusted-proxy", "proxy.example"])


def test_lists_are_json_in_the_environment_and_lists_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manual's page of options has it so."""
    monkeypatch.setenv("OCS_CORS_ORIGIN", '["https://a.example", "https://b.example"]')
    config = tmp_path / "server.toml"
    config.write_text('pin_prompt = ["system.txt"]\n')
    settings = read_settings(["--config", str(config)])
    assert settings.cors_origin == ["https://a.example", "https://b.example"]
    assert settings.pin_prompt == [Path("system.txt")]


def test_names_of_the_server_are_names_alone() -> None:
    given = ["--allowed-host", "LLM.Example.", "--allowed-host", "*"]
    assert read_settings(given).allowed_host == ["llm.example", "*"]
    for wrong in ("http://llm.example", "llm.example:80", "a b", ""):
        with pytest.raises(StartupError, match=r"--allowed-host: .*without http:// and without a port"):
            read_settings(["--allowed-host", wrong])


@pytest.mark.parametrize(
    ("arguments", "isolates"),
    [
        ([], False),
        (["--api-key", "k"], True),
        (["--api-keys", "keys.toml"], True),
        (["--api-keys", "keys.toml", "--cache-isolation", "off"], False),
        (["--cache-isolation", "key"], True),
    ],
)
def test_keys_share_no_prompts_unless_that_is_asked_for(arguments: list[str], isolates: bool) -> None:
    assert read_settings(arguments).isolates_by_key is isolates
