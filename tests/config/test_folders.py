"""Users without a home or a name, and homes with odd ones."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from openai_cpu_server.config.folders import expanded_path, user_cache_dir, user_data_dir
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.errors import StartupError

ODD = os.fsdecode(b"/home/b\xff")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As OpenShift starts containers: a user id without an entry, and no HOME. The temporary folder."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_caches_of_a_user_without_a_home_are_private(nobody: Path) -> None:
    folder = user_cache_dir()
    assert folder.parent == nobody
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert user_cache_dir() == folder
    assert read_settings([]).profile_dir.parent == folder


def test_a_cache_that_somebody_else_has_laid_there_is_not_used(nobody: Path) -> None:
    folder = user_cache_dir()
    folder.rmdir()
    (nobody / "hostile").mkdir()
    folder.symlink_to(nobody / "hostile")
    with pytest.raises(StartupError, match=r"no folder for caches: .* is not a folder"):
        user_cache_dir()


@pytest.mark.usefixtures("nobody")
def test_what_is_to_stay_needs_a_home_and_says_so() -> None:
    with pytest.raises(StartupError, match="has no home directory: set HOME or XDG_DATA_HOME"):
        user_data_dir()
    settings, said = read_settings(["--cache-dir", "~/x"]), "cannot look for ~/x: this home"
    with pytest.raises(StartupError, match=said):
        _ = settings.profile_dir
    with pytest.raises(StartupError, match=said):
        read_settings(["--config", "~/x"])


def test_the_variables_of_the_desktop_s_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, folder, default in (
        ("XDG_CACHE_HOME", user_cache_dir, "/home/me/.cache"),
        ("XDG_DATA_HOME", user_data_dir, "/home/me/.local/share"),
    ):
        for value, expected in (("/x", "/x"), ("", default), ("relative", default)):
            monkeypatch.setenv(name, value)
            assert folder() == Path(expected) / "openai-cpu-server"
        monkeypatch.delenv(name)
        assert folder() == Path(default) / "openai-cpu-server"


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_home_whose_name_is_no_utf8_is_one_line(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, ODD)
    with pytest.raises(StartupError, match="is not UTF-8"):
        user_cache_dir()


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded_path("~/x") == Path("/home/me/x")
    assert expanded_path(Path("/x/~")) == Path("/x/~")


@pytest.mark.parametrize("path", ["x" * 256, "/x/" + "ü" * 128, "/x" * 2048, "a\nb", "a\0b"])
def test_what_no_file_can_be_called_is_one_line(path: str) -> None:
    with pytest.raises(StartupError, match="cannot be a path") as refusal:
        expanded_path(path)
    assert len(str(refusal.value).splitlines()) == 1
    assert expanded_path("x" * 255) == Path("x" * 255)
