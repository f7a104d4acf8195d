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
from tests.deploy.dockerfile import stages

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def locked(*names: str) -> Iterator[Requirement]:
    """The requirements, without their hashes."""
    for name in names:
        text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
        yield from (Requirement(line.split("--hash")[0]) for line in text.splitlines())


def wanted() -> dict[str, list[Requirement]]:
    """By extra; "": of the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of = {
        "": project["dependencies"],
        **{name: extras[name] for name in ("mcp", "otel", "postgres", "redis")},
    }
    return {name: [Requirement(line) for line in lines] for name, lines in of.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_package_has_one_version_and_hashes_and_no_index_is_named(path: Path) -> None:
    assert not re.search(r"://|--(index|extra-index|find-links)", path.read_text())
    lines = path.read_text().replace("\\\n", " ").splitlines()
    assert lines
    for line in lines:
        first, *hashes = line.split("--hash=")
        assert re.fullmatch(r"[a-z0-9-]+==[^ ]+( ; .*)?", first.strip()), line
        assert hashes
        assert len(_HASH.findall(line)) == len(hashes)


@pytest.mark.parametrize("python", _PYTHONS)
@pytest.mark.parametrize("extra", ["", "mcp", "otel", "postgres", "redis"])
def test_what_the_project_asks_for_is_there_on_every_python(extra: str, python: str) -> None:
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    there = {}
    for found in locked("runtime", "llama", *filter(None, [extra])):
        if found.marker is None or found.marker.evaluate(environment):
            assert found.name not in there, f"two versions of {found.name}"
            there[found.name] = str(found.specifier).removeprefix("==")
    for asked in wanted()[extra]:
        if asked.marker is None or asked.marker.evaluate(environment):
            assert there[asked.name] in asked.specifier, "run scripts/lock"


def test_models_and_llama_cpp_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for model in ("smollm2", "minilm", "gemma3-270m"):
        (asked,) = map(Requirement, project["optional-dependencies"][model])
        found, *parts = locked(model)
        assert [part.name for part in (found, *parts)] == [asked.name, *PACKAGED[model].package.parts]
        assert str(found.specifier).removeprefix("==") in asked.specifier
    (llama,) = locked("llama")
    assert str(llama.specifier) == f"=={GGML_OF}"


def test_the_image_takes_nothing_else() -> None:
    """But for wheels that were built from it just before, and for Debian's own packages."""
    steps = [step.value for stage in stages() for step in stage.steps if step.name == "RUN"]
    commands = [
        command
        for step in steps
        for command in re.split(r"&&|;", step)
        if re.search(r"\bpip\b.*\b(install|wheel|download)\b", command)
    ]
    assert len(commands) >= 5
    for command in commands:
        from_index = "--require-hashes" in command and "--requirement" in command
        from_here = "--no-deps" in command and re.search(r"(/wheels/\w+/\*\.whl|/wheels/own \.)\s*$", command)
        assert from_index or from_here, command
        assert " wheel " not in command or "--no-build-isolation" in command, command


def test_nor_does_the_bootstrap_of_a_server() -> None:
    """What develops and tests it comes on top, and is not pinned."""
    scripts = ("bootstrap", "packaging/llama_wheel")
    text = re.sub(r"\\\n", " ", "".join((ROOT / "scripts" / name).read_text() for name in scripts))
    lines = [
        line.strip()
        for line in text.splitlines()
        if re.search(r"\bpip[ \"].*\b(install|wheel)\b", line) and not line.strip().startswith("#")
    ]
    assert len(lines) >= 5
    for line in lines:
        is_ours = (
            "$wheels" in line
            or "$work/sources" in line
            or "--no-deps --no-build-isolation --editable" in line
        )
        is_dev = line.startswith("[[ $extras == runtime ]] ||")
        assert "--require-hashes" in line or is_ours or is_dev, line
