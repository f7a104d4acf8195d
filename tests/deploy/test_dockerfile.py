"""What can be said of the image without building it."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from openai_cpu_server.config.settings import Settings
from tests.deploy.dockerfile import ROOT, assignments, filled_in, stages

LAST = stages()[-1]


def test_there_are_two_stages_from_one_base() -> None:
    assert [stage.base for stage in stages()] == ["python:${PYTHON}"] * 2
    assert "build-essential" not in " ".join(LAST.values("RUN"))


def test_it_runs_as_nobody_special_and_writes_in_its_volume_only() -> None:
    user, group = LAST.last("USER").value.split(":")
    assert (int(user) >= 10_000, group) == (True, "0")
    environment = dict(pair for step in LAST.steps if step.name == "ENV" for pair in assignments(step))
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        assert Path("/data") in (path := Path(environment[name]), *path.parents)
    assert LAST.last("VOLUME").value == "/data"


def test_its_variables_are_options_of_the_server() -> None:
    names = [name for step in LAST.steps if step.name == "ENV" for name, _ in assignments(step)]
    options = {name.removeprefix("OCS_").lower() for name in names if name.startswith("OCS_")}
    assert options
    assert options <= set(Settings.model_fields)


def test_its_health_is_asked_with_what_the_image_has() -> None:
    command = json.loads(LAST.last("HEALTHCHECK").value.partition(" CMD ")[2])
    assert command[0] == "python"
    copied = [step.words for step in LAST.steps if step.name == "COPY"]
    assert ["deploy/healthcheck.py", command[2]] in copied


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
def test_what_is_copied_is_there_and_gets_into_the_context(stage: object) -> None:
    for step in stage.steps:  # type: ignore[attr-defined]
        if step.name == "COPY" and not step.value.startswith("--from"):
            for source in step.words[:-1]:
                assert (ROOT / source).exists(), source
                assert is_in_context(source), source


@pytest.mark.parametrize(
    "path",
    [
        ".git",
        ".venv",
        "tests",
        "docs",
        "deploy/secrets/api_key",
        "openai_cpu_server/kernels/libocs_kernels.so",
    ],
)
def test_what_the_image_does_not_need_stays_out_of_the_context(path: str) -> None:
    assert not is_in_context(path)


def is_in_context(path: str) -> bool:
    """As Docker reads `.dockerignore`: the last line that fits a path or a folder above it counts."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    is_in = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        places = [path, *(str(parent) for parent in Path(path).parents)]
        if any(fnmatch.fnmatch(place, pattern) or _deep(place, pattern) for place in places):
            is_in = rule.startswith("!")
    return is_in


def _deep(path: str, pattern: str) -> bool:
    return pattern.startswith("**/") and fnmatch.fnmatch(Path(path).name, pattern[3:])


def test_the_manual_has_its_arguments_and_their_defaults() -> None:
    rows = (ROOT / "docs" / "deploy.md").read_text()
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("ARG "):
            name, _, default = line.removeprefix("ARG ").partition("=")
            assert f"| `{name}` | {f'`{default}`' if default else 'none'} |" in rows


APT = """#!/bin/sh
echo "apt-get $*" >>"$CALLS"
"""
LLAMA_WHEEL = """#!/bin/sh
echo "CMAKE_ARGS=$CMAKE_ARGS" >>"$CALLS"
"""
SILENT = "#!/bin/sh\n"


@pytest.fixture
def would_run(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs what a stage says of packages and of llama.cpp, with stand-ins for what they call. Returns the
    exit status, and the calls."""
    stand_ins = {"apt-get": APT, "llama_wheel": LLAMA_WHEEL} | dict.fromkeys(
        ("python", "pip", "useradd", "install"), SILENT
    )
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def would_run(number: int, **asked: str) -> tuple[int, str]:
        calls = tmp_path / "calls"
        calls.write_text("")
        stage = stages()[number]
        arguments = dict(pair for step in stage.steps if step.name == "ARG" for pair in assignments(step))
        for command in stage.values("RUN"):
            if "apt-get" not in command and "llama_wheel" not in command:
                continue
            # What it names by their folder, or removes, is not this machine's.
            command = command.replace("scripts/packaging/", "").replace("/var/lib", str(tmp_path))
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                env=arguments | asked | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)},
                stderr=subprocess.PIPE,
                text=True,
            )
            if done.returncode:
                return done.returncode, done.stderr
        return 0, calls.read_text()

    return would_run


def test_the_image_is_for_the_cpu_alone_unless_a_gpu_is_named(
    would_run: Callable[..., tuple[int, str]],
) -> None:
    _, builds = would_run(0)
    _, has = would_run(1)
    assert "-DGGML_NATIVE=OFF" in builds
    for word in ("vulkan", "VULKAN", "glslc", "mesa"):
        assert word not in builds + has


def test_the_image_for_vulkan_builds_with_it_and_has_its_drivers(
    would_run: Callable[..., tuple[int, str]],
) -> None:
    status, builds = would_run(0, GPU="vulkan")
    assert status == 0
    assert "install --yes --no-install-recommends build-essential" in builds
    assert "glslc libvulkan-dev spirv-headers" in builds
    assert "-DGGML_NATIVE=OFF" in builds, "it is as portable as the other"
    assert "-DGGML_VULKAN=ON" in builds
    _, has = would_run(1, GPU="vulkan")
    assert "libgomp1 libvulkan1 mesa-vulkan-drivers" in has


def test_an_image_for_another_gpu_is_refused(would_run: Callable[..., tuple[int, str]]) -> None:
    status, said = would_run(0, GPU="cuda")
    assert status != 0
    assert "GPU=cuda is not known: off or vulkan" in said


def test_variables_are_filled_in_as_the_builder_does() -> None:
    assert filled_in("/opt/venv/bin:$PATH", {"PATH": "/bin"}) == "/opt/venv/bin:/bin"
    assert filled_in("python:${PYTHON}", {}) == "python:"
