"""Folders of users without a home directory or a name, and of homes with odd names."""

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


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove the user's entry and HOME, as in containers of OpenShift; return the temporary folder."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_caches_of_a_user_without_a_home_are_private(homeless: Path) -> None:
    folder = user_cache_dir()
    assert folder.parent == homeless
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert user_cache_dir() == folder
    assert read_settings([]).profile_dir.parent == folder


def test_a_cache_of_another_user_is_not_used(homeless: Path) -> None:
    folder = user_cache_dir()
    folder.rmdir()
    (homeless / "hostile").mkdir()
    folder.symlink_to(homeless / "hostile")
    with pytest.raises(StartupError, match=r"no folder for caches: .* is not a folder"):
        user_cache_dir()


@pytest.mark.usefixtures("homeless")
def test_persistent_data_needs_a_home() -> None:
    with pytest.raises(StartupError, match="has no home directory: set HOME or XDG_DATA_HOME"):
        user_data_dir()
    settings, message = read_settings(["--cache-dir", "~/x"]), "cannot look for ~/x: this home"
    with pytest.raises(StartupError, match=message):
        _ = settings.profile_dir
    with pytest.raises(StartupError, match=message):
        read_settings(["--config", "~/x"])


def test_the_variables_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_home_whose_name_is_not_utf8_is_one_line(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, os.fsdecode(b"/home/b\xff"))
    with pytest.raises(StartupError, match="is not UTF-8"):
        user_cache_dir()


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded_path("~/x") == Path("/home/me/x")
    assert expanded_path(Path("/x/~")) == Path("/x/~")


@pytest.mark.parametrize("path", ["x" * 256, "/x/" + "ü" * 128, "/x" * 2048, "a\nb", "a\0b"])
def test_an_impossible_path_is_one_line(path: str) -> None:
    with pytest.raises(StartupError, match="cannot be a path") as refusal:
        expanded_path(path)
    assert len(str(refusal.value).splitlines()) == 1
    assert expanded_path("x" * 255) == Path("x" * 255)
