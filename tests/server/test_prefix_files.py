"""Where prefix caches are kept that nobody has named a file for."""

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
    kept = [
        files.with_file(msgspec.structs.replace(OPTIONS, **other), "../a b")
        for other in (
            {},
            {"kv_type": "q8_0"},
            {"model_path": "/models/b.gguf"},
            {"projector_path": "/p.gguf"},
        )
    ]
    folders = {Path(str(one.cache_file)).parent for one in kept}
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {tmp_path / "new" / "prefixes"}
    assert all(one.cache_file_limit and one.cache_file_limit.num_bytes <= 2**30 for one in kept)
    assert not (tmp_path / "new").exists(), "the engine makes it when it is loaded"
    without = msgspec.structs.replace(OPTIONS, cache_bytes=0)
    assert files.with_file(without, "a") == without


def test_what_was_used_longest_ago_goes_first_unless_somebody_has_it(tmp_path: Path) -> None:
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
def test_where_nothing_can_be_kept_it_says_so_in_a_line(
    place: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "file").touch()
    files = PrefixFiles(place and tmp_path / place / "prefixes", num_models=1)
    assert files.with_file(OPTIONS, "a") == OPTIONS
    (record,) = caplog.records
    assert "prefix caches are not stored" in record.getMessage()
