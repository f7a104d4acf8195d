"""A package's archive that is damaged anywhere is converted, or told of: never a traceback."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.package import ConvertedModel, Package
from tests.tiny_bert import TinyBert

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]


class Installed(Package, frozen=True):
    """A package that lies in a folder."""

    where: Path = Path()

    def folder(self) -> Path:
        return self.where


def archive(path: Path, method: int) -> bytes:
    with zipfile.ZipFile(path, "w", method) as opened:
        for name, content in TinyBert().files().items():
            opened.writestr(name, content)
    return path.read_bytes()


def model_of(folder: Path) -> ConvertedModel:
    package = Installed(name="tiny", module="tiny", where=folder)
    return ConvertedModel(package=package, archive="model.zip", name="tiny", cache=folder / "cache")


def damaged(whole: bytes, drawn: random.Random) -> bytes:
    """Bytes are others, mostly in the directory at the end; or the end is missing."""
    data = bytearray(whole)
    directory = whole.index(b"PK\x01\x02")
    for _ in range(drawn.choice((1, 1, 3, 20))):
        place = drawn.choice(
            (drawn.randrange(len(data)), drawn.randrange(directory, len(data)), drawn.randrange(200))
        )
        data[place] = drawn.randrange(256)
    return bytes(data[: drawn.randrange(len(data))] if drawn.random() < 0.1 else data)


def complaint(model: ConvertedModel) -> str:
    """Empty: there is none."""
    try:
        model.path()
    except StartupError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("count", [10**9, 2**64 - 1, 0, -1])
def test_layers_that_no_file_can_hold(tmp_path: Path, count: int) -> None:
    files = TinyBert().files()
    files["config.json"] = json.dumps(
        json.loads(files["config.json"]) | {"num_hidden_layers": count}
    ).encode()
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    assert f"it counts {count:,} layers" in complaint(model_of(tmp_path))


@pytest.mark.parametrize("method", METHODS)
def test_random_damages(tmp_path: Path, method: int) -> None:
    path, drawn = tmp_path / "model.zip", random.Random(method)
    whole, told = archive(path, method), []
    for _ in range(150):
        path.write_bytes(damaged(whole, drawn))
        told.append(complaint(model_of(tmp_path)))
    assert sum("the package tiny is broken: " in one for one in told) > 50


@pytest.mark.parametrize(("at", "value"), [(6, 0x01), (8, 99), (6, 0x20)])
def test_a_file_that_says_it_is_encrypted_or_stored_in_an_unknown_way(
    tmp_path: Path, at: int, value: int
) -> None:
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
