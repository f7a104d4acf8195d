"""Which models the settings mean, and which settings are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.serving.plans import ModelPlan, planned_models
from openai_cpu_server.settings import read_settings


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.gguf", "b.gguf", "x=y.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(files: Path, *arguments: str, toml: str = "") -> list[ModelPlan]:
    config = files / "c.toml"
    config.write_text(toml)
    return planned_models(read_settings(["--config", str(config), *arguments]))


def test_one_model_is_as_it_was(files: Path) -> None:
    (plan,) = planned(files, "--model", "a.gguf", "--ctx-size", "512")
    assert (plan.names, plan.path, plan.options.ctx_size) == (("a",), Path("a.gguf"), 512)
    (renamed,) = planned(files, "--model", "a.gguf", "--served-model-name", "me")
    assert renamed.names == ("me",)


def test_several_by_name_and_the_first_is_the_default(files: Path) -> None:
    plans = planned(files, "--model", "one=a.gguf", "--model", "b.gguf", "--model=team/two=b.gguf")
    assert [plan.name for plan in plans] == ["one", "b", "team/two"]


def test_a_file_with_an_equals_sign_is_a_file(files: Path) -> None:
    (plan,) = planned(files, "--model", "x=y.gguf")
    assert plan.path == Path("x=y.gguf")


def test_the_environment_names_one_or_a_list(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_MODEL", "a.gguf")
    assert [plan.name for plan in planned(files)] == ["a"]
    monkeypatch.setenv("OCS_MODEL", '["one=a.gguf", "b.gguf"]')
    assert [plan.name for plan in planned(files)] == ["one", "b"]


def test_a_table_has_options_of_its_own_and_else_those_of_the_server(files: Path) -> None:
    toml = """
    ctx_size = 1024
    threads = 1
    idle_unload = 60
    [models.one]
    source = "a.gguf"
    ctx_size = 512
    aliases = ["first"]
    pinned = true
    memory = 100
    [models.two]
    source = "b.gguf"
    keep_alive = 5
    [aliases]
    second = "2nd"
    "2nd" = "two"
    """
    one, two = planned(files, toml=toml)
    assert (one.names, two.names) == (("one", "first"), ("two", "second", "2nd"))
    assert (one.options.ctx_size, two.options.ctx_size) == (512, 1024)
    assert one.options.threads == two.options.threads == 1
    assert (one.is_pinned, one.keep_alive_s, one.memory_bytes) == (True, None, 100 * 2**20)
    assert (two.is_pinned, two.keep_alive_s, two.memory_bytes) == (False, 5, None)


@pytest.mark.parametrize(
    ("arguments", "toml", "line"),
    [
        (("--model", "a.gguf", "--model", "a=b.gguf"), "", "two models have the name 'a'"),
        (("--model", "a.gguf"), '[models.a]\nsource = "b.gguf"', "two models have the name 'a'"),
        (("--model", "a.gguf"), '[models.b]\nsource = "b.gguf"\naliases = ["a"]', "the name 'a'"),
        (("--model", "a.gguf", "--model", "b.gguf", "--served-model-name", "x"), "", "is for one model"),
        (("--model", "a.gguf"), '[aliases]\nx = "y"\ny = "x"', "x -> y -> x is a loop"),
        (("--model", "a.gguf"), '[aliases]\nx = "y"', "there is no model 'y'; there is a"),
        (("--model", "a.gguf"), '[aliases]\na = "a"', "two models have the name 'a'"),
        ((), '[models.a]\nsource = "a.gguf"\nfoo = 1', r"\[models.a\] foo: "),
        ((), '[models.a]\nsource = "a.gguf"\nctx_size = 1', r"\[models.a\] ctx_size: "),
        (("--model", "a.gguf", "--model", "c.gguf"), "", "there is no file c.gguf"),
        (("--model", "a.gguf", "--model", "b.gguf", "--cache-file", "c"), "", "each its own"),
        (("--model", "a.gguf", "--memory", "0"), "", "--memory: "),
    ],
)
def test_what_makes_no_sense_is_one_line(
    files: Path, arguments: tuple[str, ...], toml: str, line: str
) -> None:
    with pytest.raises(StartupError, match=line) as error:
        planned(files, *arguments, toml=toml)
    assert "\n" not in str(error.value)
