"""Packages that scripts/bootstrap and the image take from an index are pinned by hash."""

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


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, each with its continuation lines."""
    return path.read_text().replace("\\\n", " ").splitlines()


def requirements(*names: str) -> Iterator[Requirement]:
    """Yield the requirements of these lock files, without their hashes."""
    for name in names:
        yield from (
            Requirement(line.split("--hash")[0]) for line in lines_of(ROOT / f"requirements/{name}.txt")
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_package_has_one_version_and_hashes_without_an_index(path: Path) -> None:
    package = re.compile(r"[a-z0-9-]+==[^ ]+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+\s*")
    assert lines_of(path)
    assert [line for line in lines_of(path) if not package.fullmatch(line)] == []


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(
    "extra", ["", "documents", "heic", "mcp", "otel", "postgres", "ray", "redis", "sound"]
)
def test_locks_have_the_projects_requirements_on_every_python(extra: str, python: str) -> None:
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    versions = {}
    for pinned in requirements("runtime", "llama", *filter(None, [extra])):
        if pinned.marker is None or pinned.marker.evaluate(environment):
            assert pinned.name not in versions, f"two versions of {pinned.name}"
            versions[pinned.name] = str(pinned.specifier).removeprefix("==")
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert versions[requirement.name] in requirement.specifier, "run scripts/lock"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("extra", ["dev", "docs"])
def test_developers_have_the_versions_of_users(extra: str, python: str) -> None:
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    versions = {
        name: {
            pinned.name: str(pinned.specifier)
            for pinned in requirements(name)
            if pinned.marker is None or pinned.marker.evaluate(environment)
        }
        for name in (
            extra,
            "runtime",
            "build",
            "documents",
            "heic",
            "mcp",
            "otel",
            "postgres",
            "ray",
            "sound",
        )
    }
    developers = versions.pop(extra)
    different = {
        name
        for users in versions.values()
        for name in users
        if developers.get(name, users[name]) != users[name]
    }
    assert different <= {"websockets"}, "scripts/lock has the reason"
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pinned = {**versions["runtime"], **developers}[requirement.name]
            assert pinned.removeprefix("==") in requirement.specifier, "run scripts/lock"


def test_scripts_offer_each_users_extra_and_its_lock() -> None:
    (names,) = re.findall("^readonly for_users=(.*)$", (ROOT / "scripts/bootstrap").read_text(), re.MULTILINE)
    offered = names.split(",")
    assert {*offered} == {*EXTRAS} - {"", "bench", "dev", "docs", "smollm2"}
    assert [name for name in offered if not (ROOT / f"requirements/{name}.txt").exists()] == []
    for place in ("scripts/serve", "docs/start.md"):
        assert [name for name in offered if name not in (ROOT / place).read_text()] == []


def test_models_and_llama_cpp_have_the_projects_versions() -> None:
    for model in ("smollm2", "minilm", "gemma3-270m"):
        (requirement,) = map(Requirement, EXTRAS[model])
        pinned, *parts = requirements(model)
        assert [part.name for part in (pinned, *parts)] == [requirement.name, *PACKAGED[model].package.parts]
        assert str(pinned.specifier).removeprefix("==") in requirement.specifier
    (llama,) = requirements("llama")
    assert str(llama.specifier) == f"=={GGML_OF}"


OURS = re.compile(
    r"\$wheels|\$work/|/wheels/\w+/\*\.whl|/wheels/own \.|--no-deps --no-build-isolation --editable"
)
"""Packages that a previous command built, and our own."""


@pytest.mark.parametrize(
    "paths", [("scripts/bootstrap", "scripts/packaging/llama_wheel"), ("deploy/Dockerfile",)]
)
def test_commands_take_only_pinned_packages_from_an_index(paths: tuple[str, ...]) -> None:
    commands = [
        command
        for path in paths
        for line in lines_of(ROOT / path)
        if not line.strip().startswith("#")
        for command in re.split(r"&&|;", line)
        if re.search(r"\bpip[ \"].*\b(install|wheel|download)\b", command)
    ]
    assert len(commands) >= 5
    unpinned = [line for line in commands if "--require-hashes" not in line]
    assert [line for line in unpinned if "--no-deps" not in line or not OURS.search(line)] == []
    assert [line for line in commands if " wheel " in line and "--no-build-isolation" not in line] == []
