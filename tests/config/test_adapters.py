"""Options and tables of adapters, and the files that the server accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.config.adapters import AdapterOption, AdapterSource, adapters_of_table, parse_adapter
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.errors import AdapterFailed, AdapterNotAllowed, StartupError
from openai_cpu_server.model_source.resolve import AdapterFiles


@pytest.mark.parametrize(
    ("text", "model", "source"),
    [
        ("one=a.gguf", None, AdapterSource("one", "a.gguf")),
        ("m/one=/x/a.gguf@0.5", "m", AdapterSource("one", "/x/a.gguf", 0.5)),
        ("team/m/one=a@b.gguf", "team/m", AdapterSource("one", "a@b.gguf")),
        ("one=hf:o/r/f.gguf@-1", None, AdapterSource("one", "hf:o/r/f.gguf", -1.0)),
        ("one=a=b.gguf", None, AdapterSource("one", "a=b.gguf")),
    ],
)
def test_options(text: str, model: str | None, source: AdapterSource) -> None:
    assert parse_adapter(text) == AdapterOption(model, source)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.gguf", "is not"),
        ("one=", "is not"),
        ("/one=a", "is not"),
        ("=a", "is not a valid adapter name"),
        ("a:b=c", "is not a valid adapter name"),
        ("one=a@nan", "a scale"),
        ("one=a@0", "a scale"),
        ("one=a@1e9", "a scale"),
    ],
)
def test_wrong_options(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_adapter(text)
    with pytest.raises(StartupError, match="--adapter: .*" + reason):
        read_settings(["--adapter", text])


def test_tables_and_several_options() -> None:
    table = {"one": "a.gguf@2", "two": {"path": "b.gguf"}, "three": {"path": "c@2", "scale": 3}}
    assert adapters_of_table(table) == (
        AdapterSource("one", "a.gguf", 2.0),
        AdapterSource("two", "b.gguf"),
        AdapterSource("three", "c@2", 3.0),
    )
    settings = read_settings(["--adapter", "one=a", "--adapter", "m/two=b@2"])
    assert [option.source.name for option in settings.adapter] == ["one", "two"]


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "adapters"
        (folder / "more").mkdir(parents=True)
        (folder / "a.gguf").write_text("a")
        (folder / "more" / "b.gguf").write_text("b")
        (tmp_path / "secret").write_text("s")
        (folder / "link").symlink_to(tmp_path / "secret")
        return folder

    def test_files_in_the_folder_are_found(self, folder: Path) -> None:
        for name in ("a.gguf", "more/b.gguf", "more/../a.gguf", str(folder / "a.gguf")):
            found = AdapterFiles(folder).of_client(AdapterSource("one", name))
            assert Path(found.path).is_file()
            assert (found.name, len(found.digest)) == ("one", 64)
        with pytest.raises(AdapterFailed, match="The file c does not exist"):
            AdapterFiles(folder).of_client(AdapterSource("one", "c"))

    @pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link", "../nothing", "a\0b", "x" * 5000])
    def test_files_outside_the_folder_are_refused(self, folder: Path, name: str) -> None:
        """Refuse existing and missing files alike."""
        with pytest.raises(AdapterNotAllowed, match="is outside of"):
            AdapterFiles(folder).of_client(AdapterSource("one", name))

    @pytest.mark.parametrize("name", ["a.gguf", "hf:o/r/f.gguf"])
    def test_without_a_folder_clients_load_nothing(self, name: str) -> None:
        with pytest.raises(AdapterNotAllowed, match="--adapter-dir"):
            AdapterFiles(None).of_client(AdapterSource("one", name))

    def test_the_operator_may_name_any_file(self, tmp_path: Path, folder: Path) -> None:
        files = AdapterFiles(None)
        assert files.of_operator(AdapterSource("one", str(tmp_path / "secret"))).scale == 1
        with pytest.raises(StartupError, match="does not exist"):
            files.of_operator(AdapterSource("one", str(tmp_path / "nothing.gguf")))
