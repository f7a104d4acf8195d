"""Models of a folder: their names, and when a new file is taken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.model_source.folder import FolderFacts, ModelFolder
from tests.llama.odd_models import header_only, rewritten
from tests.tiny_model import tiny_model_path

TINY = tiny_model_path()
NOW = 10_000.0
Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(name: str, content: bytes | None = None, *, age_s: float = 3600) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
            shutil.copy(TINY, path)
        else:
            path.write_bytes(content)
        os.utime(path, (NOW - age_s, NOW - age_s))
        return path

    return put


def folder(path: Path, **more: object) -> ModelFolder:
    return ModelFolder(path, clock=lambda: NOW, **more)  # type: ignore[arg-type]


def names(models: ModelFolder) -> list[str]:
    return [model.name for model in models.look()]


def test_models_are_found_two_folders_deep_and_nothing_else(tmp_path: Path, put: Put) -> None:
    for name in ("a.gguf", "one/b.gguf", "one/two/c.gguf", "one/two/three/d.gguf", ".h/e.gguf", ".f.gguf"):
        put(name)
    put("a-draft.gguf")
    put("read.me", b"text")
    put("mmproj-a.gguf")
    for name, kind in (("legal.gguf", "adapter"), ("seen.gguf", "mmproj")):
        put(name, rewritten(TINY, tmp_path / "new", {"general.type": kind}).read_bytes())
    for name, shape in (("quotes.gguf", "tiny-gemma4-assistant"), ("mtp-b.gguf", "tiny-gemma4-assistant")):
        put(name, tiny_model_path(shape=shape).read_bytes())
    put("words.gguf", header_only(tmp_path / "new", "llama", {}).read_bytes())
    (tmp_path / "circle").symlink_to(tmp_path)
    found = folder(tmp_path).look()
    assert [model.name for model in found] == ["a", "b", "c"]
    assert found[0].facts.kind is ModelKind.GENERATES


def test_parts_are_one_model_when_all_are_there(tmp_path: Path, put: Put) -> None:
    put("big-00001-of-00002.gguf", b"GGUF")
    assert folder(tmp_path).names() == {}
    put("big-00002-of-00002.gguf", b"GGUF")
    assert folder(tmp_path).names() == {"big": tmp_path / "big-00001-of-00002.gguf"}


def test_the_nearest_file_has_the_name(tmp_path: Path, put: Put, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    put("y/m.gguf")
    models = folder(tmp_path, taken=["other"])
    assert names(models) == ["m"]
    put("m.gguf")
    put("other.gguf")
    put("x/other.gguf")
    for _ in range(2):
        assert sorted(names(models)) == ["m", "x/other"], "new files take free names"
    assert set(folder(tmp_path, taken=["other"]).names()) == {"m", "x/other", "y/m"}, "after a restart"
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"{tmp_path}/m.gguf is not served: another model is called m",
        f"{tmp_path}/other.gguf is not served: another model is called other",
        f"{tmp_path}/x/other.gguf is served as x/other: another model is called other",
    ]
    assert set(folder(tmp_path, served=[tmp_path / "m.gguf"]).names()) == {"m", "other", "x/other"}


def test_a_file_that_is_still_being_written_is_not_taken(tmp_path: Path, put: Put) -> None:
    whole = TINY.read_bytes()
    models = folder(tmp_path)
    put("m.gguf", whole[:1000], age_s=0.5)
    assert models.look() == []
    put("m.gguf", whole, age_s=1)
    assert models.look() == []
    put("m.gguf", whole, age_s=5)
    assert names(models) == ["m"]
    put("m.gguf", whole[:2000], age_s=0)
    assert isinstance(models.look()[0].facts, FolderFacts), "facts of the file before it was overwritten"
    (tmp_path / "m.gguf").unlink()
    assert models.look() == []


def test_a_damaged_file_is_logged_once(tmp_path: Path, put: Put, caplog: pytest.LogCaptureFixture) -> None:
    put("bad.gguf", b"no model at all")
    put("cut.gguf", TINY.read_bytes()[:100_000])
    put("good.gguf")
    models = folder(tmp_path)
    for _ in range(2):
        found = {model.name: model.facts for model in models.look()}
    assert isinstance(found["bad"], str)
    assert "the file at 100,000" in str(found["cut"])
    assert isinstance(found["good"], FolderFacts)
    assert len(caplog.records) == 2
    put("cut.gguf", age_s=10)
    assert all(isinstance(m.facts, FolderFacts) for m in models.look() if m.name != "bad")
