"""Files on disk are private, and files of other users are refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import AnswerEntry, StoreBounds
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.llama.cells.block_store import read_cache_file, write_cache_file
from openai_cpu_server.llama.measure.measurements import Measured, Profile, ProfileKey
from openai_cpu_server.storage.private_files import (
    ForeignFile,
    SoleWriter,
    keep_database_private,
    private_folder,
    replacing,
)
from tests.tiny_model import tiny_model_path

_OTHER_USER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def _wide_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


PROFILE = Profile(
    threads=1, threads_batch=1, repack=False, prefill_tokens=64, kv_type="f16", flash_attention=True
)


def jobs(path: Path) -> None:
    database = open_database(str(path))
    with database.read():
        require_private(path.parent)
    database.close()


def answers(path: Path) -> None:
    async def use() -> None:
        store = SqliteAnswers.open(path, StoreBounds(60, 1 << 20))
        await store.put(AnswerEntry(key="k", group=None, vector=None, answer=b"a"))
        require_private(path.parent)
        await store.close()

    asyncio.run(use())


def prefixes(path: Path) -> None:
    write_cache_file(path, "f", ())
    read_cache_file(path, "f")


def measurements(path: Path) -> None:
    key = ProfileKey.here(tiny_model_path())
    assert Measured(path.parent, ProfileKey, Profile).put(key, PROFILE)


WRITERS = [jobs, answers, prefixes, measurements]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def require_private(folder: Path) -> None:
    files = [path for path in folder.iterdir() if path.is_file()]
    assert files
    assert {path.name: mode(path) for path in files if mode(path) != 0o600} == {}


@pytest.mark.parametrize("write", WRITERS)
def test_files_are_private_also_those_of_earlier_versions(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    write(tmp_path / "file")
    require_private(tmp_path)
    if write in (jobs, answers):
        (tmp_path / "file-wal").touch()
        (tmp_path / "file-shm").touch()
    for file in tmp_path.glob("file*"):
        file.chmod(0o666)
    write(tmp_path / "file")
    require_private(tmp_path)


def test_a_prefix_cache_of_an_earlier_version_becomes_private_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    prefixes(path)
    path.chmod(0o644)
    read_cache_file(path, "f")
    require_private(tmp_path)


def test_files_for_a_user_follow_the_umask(tmp_path: Path) -> None:
    for umask, expected in ((0o022, 0o644), (0o077, 0o600)):
        os.umask(umask)
        with replacing(tmp_path / "made", mode=0o666):
            pass
        assert mode(tmp_path / "made") == expected


def test_a_new_folder_is_private_too(tmp_path: Path) -> None:
    for write in (jobs, answers, measurements):
        write(tmp_path / write.__name__ / "file")
        assert mode(tmp_path / write.__name__) == 0o700


@as_root
@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_a_database_of_another_user_is_refused_in_one_line(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    open_database(str(path)).close()
    theirs = Path(f"{path}{ending}")
    theirs.touch()
    os.chown(theirs, _OTHER_USER, -1)
    message = rf"jobs\.db{ending} belongs to another user \(id 12345"
    with pytest.raises(StartupError, match=message) as refused:
        open_database(str(path))
    assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(StartupError, match="belongs to another user"):
        SqliteAnswers.open(path, StoreBounds(60, 1 << 20))


@as_root
def test_the_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "jobs.db"
    mine.touch()
    link.symlink_to(mine)
    keep_database_private(link)  # a link of the same user may lead anywhere
    os.chown(link, _OTHER_USER, -1, follow_symlinks=False)
    with pytest.raises(ForeignFile):
        keep_database_private(link)


def test_only_regular_files_are_accepted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(StartupError, match="is not a regular file"):
            open_database(str(tmp_path / name))


def test_a_database_named_by_a_uri_is_private_too(tmp_path: Path) -> None:
    path = tmp_path / "with space.db"
    open_database(f"sqlite:///file:{tmp_path}/with%20space.db?uri=true").close()
    assert mode(path) == 0o600


@as_root
def test_cells_of_another_user_are_not_passed_to_native_code(tmp_path: Path) -> None:
    path = tmp_path / "prefixes.kv"
    prefixes(path)
    os.chown(path, _OTHER_USER, -1)
    with pytest.raises(ForeignFile, match="belongs to another user"):
        read_cache_file(path, "f")


@as_root
def test_measurements_of_another_user_are_ignored(tmp_path: Path) -> None:
    profiles, key = Measured(tmp_path, ProfileKey, Profile), ProfileKey.here(tiny_model_path())
    profiles.put(key, PROFILE)
    assert (profiles.get(key), profiles.of_model(tiny_model_path())) == (PROFILE, [(key, PROFILE)])
    os.chown(profiles.path(key), _OTHER_USER, -1)
    assert (profiles.get(key), profiles.of_model(tiny_model_path())) == (None, [])


def test_another_user_cannot_create_the_draft_in_advance(tmp_path: Path) -> None:
    """A draft has a new name each time, and is private from its creation on."""
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "file"):
            (draft,) = tmp_path.glob("*.draft")
            names.add(draft.name)
            assert mode(draft) == 0o600
    assert len(names) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_drafts_are_removed_after_the_end_of_their_writers(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from openai_cpu_server.storage.private_files import replacing\n"
        "with replacing(Path(sys.argv[1])):\n    os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "file"
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -9
    (orphan,) = tmp_path.iterdir()
    other_draft = tmp_path / ".other.0.draft"
    other_draft.touch()
    with replacing(path), replacing(path):
        assert other_draft in tmp_path.iterdir()
        assert len({*tmp_path.iterdir()} - {orphan}) == 3
    assert set(tmp_path.iterdir()) == {path, other_draft}
    assert not orphan.exists()


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with contextlib.suppress(ZeroDivisionError), replacing(path) as file:
        file.write(b"new" * (1 // 0))
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    mine = private_folder(tmp_path / "mine")
    mine.chmod(0o777)
    assert mode(private_folder(mine)) == 0o700
    os.chown(mine, _OTHER_USER, -1)
    with pytest.raises(ForeignFile):
        private_folder(mine)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ForeignFile):
        private_folder(tmp_path / "link")


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    first, second = SoleWriter(tmp_path / "f"), SoleWriter(tmp_path / "f")
    assert first.may_write()
    assert not second.may_write()
    first.release()
    assert second.may_write()
    assert not first.may_write()
    assert SoleWriter(tmp_path / "absent" / "f").may_write(), (
        "the error of a missing folder comes from the writer"
    )
