"""What is kept on disk is nobody else's, and nobody else's is taken."""

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

_STRANGER = 12_345
"""The id of some other user."""
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
def test_files_are_their_owners_alone_those_of_earlier_versions_too(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    write(tmp_path / "kept")
    require_private(tmp_path)
    if write in (jobs, answers):
        (tmp_path / "kept-wal").touch()
        (tmp_path / "kept-shm").touch()
    for file in tmp_path.glob("kept*"):
        file.chmod(0o666)
    write(tmp_path / "kept")
    require_private(tmp_path)


def test_a_prefix_cache_of_an_earlier_version_becomes_so_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    prefixes(path)
    path.chmod(0o644)
    read_cache_file(path, "f")
    require_private(tmp_path)


def test_what_is_made_for_a_user_is_as_the_umask_says(tmp_path: Path) -> None:
    for umask, expected in ((0o022, 0o644), (0o077, 0o600)):
        os.umask(umask)
        with replacing(tmp_path / "made", mode=0o666):
            pass
        assert mode(tmp_path / "made") == expected


def test_a_new_folder_is_its_owners_too(tmp_path: Path) -> None:
    for write in (jobs, answers, measurements):
        write(tmp_path / write.__name__ / "kept")
        assert mode(tmp_path / write.__name__) == 0o700


@as_root
@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_a_database_of_another_user_is_refused_in_one_line(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    open_database(str(path)).close()
    theirs = Path(f"{path}{ending}")
    theirs.touch()
    os.chown(theirs, _STRANGER, -1)
    said = rf"jobs\.db{ending} belongs to another user \(id 12345"
    with pytest.raises(StartupError, match=said) as refused:
        open_database(str(path))
    assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(StartupError, match="belongs to another user"):
        SqliteAnswers.open(path, StoreBounds(60, 1 << 20))


@as_root
def test_the_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "jobs.db"
    mine.touch()
    link.symlink_to(mine)
    keep_database_private(link)  # one's own may lead anywhere
    os.chown(link, _STRANGER, -1, follow_symlinks=False)
    with pytest.raises(ForeignFile):
        keep_database_private(link)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(StartupError, match="is not a regular file"):
            open_database(str(tmp_path / name))


def test_a_database_by_its_uri_is_private_too(tmp_path: Path) -> None:
    path = tmp_path / "with space.db"
    open_database(f"sqlite:///file:{tmp_path}/with%20space.db?uri=true").close()
    assert mode(path) == 0o600


@as_root
def test_cells_of_another_user_are_not_given_to_native_code(tmp_path: Path) -> None:
    path = tmp_path / "prefixes.kv"
    prefixes(path)
    os.chown(path, _STRANGER, -1)
    with pytest.raises(ForeignFile, match="belongs to another user"):
        read_cache_file(path, "f")


@as_root
def test_measurements_of_another_user_are_not_believed(tmp_path: Path) -> None:
    profiles, key = Measured(tmp_path, ProfileKey, Profile), ProfileKey.here(tiny_model_path())
    profiles.put(key, PROFILE)
    assert (profiles.get(key), profiles.of_model(tiny_model_path())) == (PROFILE, [(key, PROFILE)])
    os.chown(profiles.path(key), _STRANGER, -1)
    assert (profiles.get(key), profiles.of_model(tiny_model_path())) == (None, [])


def test_a_draft_cannot_be_laid_in_wait_for(tmp_path: Path) -> None:
    """Its name is another each time, and it is private from its first moment on."""
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "kept"):
            (draft,) = tmp_path.glob("*.draft")
            names.add(draft.name)
            assert mode(draft) == 0o600
    assert len(names) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_drafts_go_with_their_writers_and_not_before(tmp_path: Path) -> None:
    killed = (
        "import os, sys\nfrom pathlib import Path\n"
        "from openai_cpu_server.storage.private_files import replacing\n"
        "with replacing(Path(sys.argv[1])):\n    os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "kept"
    assert subprocess.run([sys.executable, "-c", killed, str(path)], check=False).returncode == -9
    (orphan,) = tmp_path.iterdir()
    elses = tmp_path / ".other.0.draft"
    elses.touch()
    with replacing(path), replacing(path):
        assert elses in tmp_path.iterdir()
        assert len({*tmp_path.iterdir()} - {orphan}) == 3
    assert set(tmp_path.iterdir()) == {path, elses}
    assert not orphan.exists()


def test_what_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    with contextlib.suppress(ZeroDivisionError), replacing(path) as file:
        file.write(b"new" * (1 // 0))
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


@as_root
def test_a_guessable_folder_that_another_user_has_made_is_refused(tmp_path: Path) -> None:
    mine = private_folder(tmp_path / "mine")
    mine.chmod(0o777)
    assert mode(private_folder(mine)) == 0o700
    os.chown(mine, _STRANGER, -1)
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
    assert SoleWriter(tmp_path / "absent" / "f").may_write(), "its writer will say what is wrong"
