"""Default files of prefix caches, for servers without --cache-file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.server.prefix_files import PrefixFiles
from openai_cpu_server.storage.private_files import SoleWriter

OPTIONS = EngineOptions(model_path="/models/a.gguf", cache_bytes=2**40)


def test_each_model_has_a_folder_of_its_own(tmp_path: Path) -> None:
    files = PrefixFiles(tmp_path / "new" / "prefixes", num_models=1)
    all_options = [
        files.with_file(msgspec.structs.replace(OPTIONS, **other), "../a b")
        for other in (
            {},
            {"kv_type": "q8_0"},
            {"model_path": "/models/b.gguf"},
            {"projector_path": "/p.gguf"},
        )
    ]
    folders = {Path(str(options.cache_file)).parent for options in all_options}
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {tmp_path / "new" / "prefixes"}
    limits = [options.cache_file_limit for options in all_options]
    assert all(limit and limit.num_bytes <= 2**30 for limit in limits)
    assert not (tmp_path / "new").exists(), "the engine creates the folder at its start"
    without = msgspec.structs.replace(OPTIONS, cache_bytes=0)
    assert files.with_file(without, "a") == without


def test_the_least_recently_used_cache_is_removed_first_unless_it_is_in_use(tmp_path: Path) -> None:
    most_bytes = 250 * 2**20
    for age, name in enumerate(("new", "old", "held", "older")):
        cells = tmp_path / name / "cells"
        cells.parent.mkdir()
        with cells.open("wb") as file:
            file.truncate(100 * 2**20)
        os.utime(cells, (1000 - age, 1000 - age))
    writer = SoleWriter(tmp_path / "held" / "cells")
    assert writer.may_write()
    PrefixFiles(tmp_path, num_models=1, most_bytes=most_bytes)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "old", "held"}
    writer.release()
    PrefixFiles(tmp_path, num_models=1, most_bytes=most_bytes)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "old"}


@pytest.mark.parametrize("place", ["file", None])
def test_a_missing_folder_is_logged_in_one_line(
    place: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "file").touch()
    files = PrefixFiles(place and tmp_path / place / "prefixes", num_models=1)
    assert files.with_file(OPTIONS, "a") == OPTIONS
    (record,) = caplog.records
    assert "prefix caches are not stored" in record.getMessage()
