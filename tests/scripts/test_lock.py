"""What scripts/bootstrap and the image take from a package index is known by its hash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from openai_cpu_server.kernels.library import GGML_OF
from openai_cpu_server.model_source.package import PACKAGED

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def joined(path: Path) -> list[str]:
    """The lines of a file, each with those that continue it."""
    return path.read_text().replace("\\\n", " ").splitlines()


def locked(*names: str) -> Iterator[Requirement]:
    """The requirements, without their hashes."""
    for name in names:
        yield from (
            Requirement(line.split("--hash")[0]) for line in joined(ROOT / f"requirements/{name}.txt")
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_package_has_one_version_and_hashes_and_no_index_is_named(path: Path) -> None:
    package = re.compile(r"[a-z0-9-]+==[^ ]+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+\s*")
    assert joined(path)
    assert [line for line in joined(path) if not package.fullmatch(line)] == []


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(
    "extra", ["", "documents", "heic", "mcp", "otel", "postgres", "ray", "redis", "sound"]
)
def test_what_the_project_asks_for_is_there_on_every_python(extra: str, python: str) -> None:
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    there = {}
    for found in locked("runtime", "llama", *filter(None, [extra])):
        if found.marker is None or found.marker.evaluate(environment):
            assert found.name not in there, f"two versions of {found.name}"
            there[found.name] = str(found.specifier).removeprefix("==")
    for asked in map(Requirement, EXTRAS[extra]):
        if asked.marker is None or asked.marker.evaluate(environment):
            assert there[asked.name] in asked.specifier, "run scripts/lock"


def test_scripts_offer_each_extra_for_users_with_its_lock() -> None:
    (names,) = re.findall("^readonly for_users=(.*)$", (ROOT / "scripts/bootstrap").read_text(), re.MULTILINE)
    offered = names.split(",")
    assert {*offered} == {*EXTRAS} - {"", "bench", "dev", "docs", "smollm2"}
    assert [name for name in offered if not (ROOT / f"requirements/{name}.txt").exists()] == []
    for place in ("scripts/serve", "docs/start.md"):
        assert [name for name in offered if name not in (ROOT / place).read_text()] == []


def test_models_and_llama_cpp_are_those_of_the_project() -> None:
    for model in ("smollm2", "minilm", "gemma3-270m"):
        (asked,) = map(Requirement, EXTRAS[model])
        found, *parts = locked(model)
        assert [part.name for part in (found, *parts)] == [asked.name, *PACKAGED[model].package.parts]
        assert str(found.specifier).removeprefix("==") in asked.specifier
    (llama,) = locked("llama")
    assert str(llama.specifier) == f"=={GGML_OF}"


OURS = re.compile(
    r"\$wheels|\$work/|/wheels/\w+/\*\.whl|/wheels/own \.|--no-deps --no-build-isolation --editable"
)
"""Packages that were built just before, and our own."""


@pytest.mark.parametrize(
    "paths", [("scripts/bootstrap", "scripts/packaging/llama_wheel"), ("deploy/Dockerfile",)]
)
def test_nothing_else_is_taken_from_an_index(paths: tuple[str, ...]) -> None:
    """Packages for developers come on top, and are not pinned."""
    commands = [
        command
        for path in paths
        for line in joined(ROOT / path)
        if not line.strip().startswith(("#", "[[ $extras == runtime ]] ||"))
        for command in re.split(r"&&|;", line)
        if re.search(r"\bpip[ \"].*\b(install|wheel|download)\b", command)
    ]
    assert len(commands) >= 5
    unknown = [one for one in commands if "--require-hashes" not in one]
    assert [one for one in unknown if "--no-deps" not in one or not OURS.search(one)] == []
    assert [one for one in commands if " wheel " in one and "--no-build-isolation" not in one] == []
