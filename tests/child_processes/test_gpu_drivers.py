"""Files of the Vulkan drivers that the environment names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from openai_cpu_server.child_processes.confine import driver_files


def manifest(folder: Path, library: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "icd.json"
    path.write_text(json.dumps({"ICD": {"library_path": library, "api_version": "1.4.0"}}))
    return path


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"])
def test_manifests_and_their_libraries(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = manifest(tmp_path / "one", "./lib.so")
    elsewhere = manifest(tmp_path / "two", str(tmp_path / "three/lib.so"))
    monkeypatch.setenv(variable, os.pathsep.join(map(str, (beside, elsewhere.parent, tmp_path / "absent"))))
    found = driver_files()
    assert {beside, tmp_path / "one/lib.so", elsewhere.parent, tmp_path / "three/lib.so"} <= set(found)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"ICD": 1}', '{"ICD": {"library_path": 1}}', '{"ICD": {"library_path": "lib.so"}}'],
)
def test_a_manifest_without_a_library_is_listed_alone(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "icd.json"
    path.write_text(text)
    before = driver_files()
    monkeypatch.setenv("VK_DRIVER_FILES", str(path))
    assert driver_files() == [*before, path]
