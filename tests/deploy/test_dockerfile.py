"""Checks of the Dockerfile that need no build."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from pathlib import Path

from openai_cpu_server.config.settings import Settings
from tests.deploy import ROOT

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines)).splitlines()
    return [(name, value.strip()) for name, _, value in (line.partition(" ") for line in joined if line)]


LAST = instructions()[max(index for index, (name, _) in enumerate(instructions()) if name == "FROM") :]


def test_the_image_runs_unprivileged_and_writes_to_its_volume_only() -> None:
    settings = dict(LAST)
    assert re.fullmatch(r"[1-9]\d{4,}:0", settings["USER"])
    assert settings["VOLUME"] == "/data"
    homes = re.findall(r"\b(?:HOME|XDG_DATA_HOME|XDG_CACHE_HOME|HF_HOME)=(\S+)", settings["ENV"])
    assert len(homes) == 4
    assert all(home == "/data" or home.startswith("/data/") for home in homes)
    options = {name.lower() for name in re.findall(r"\bOCS_(\w+)=", settings["ENV"])}
    assert options
    assert options <= set(Settings.model_fields)
    assert ("COPY", "deploy/healthcheck.py /opt/healthcheck.py") in LAST
    assert '"/opt/healthcheck.py"' in settings["HEALTHCHECK"]


def test_copied_files_exist_and_are_alone_in_the_context() -> None:
    values = [value for name, value in instructions() if name == "COPY" and not value.startswith("--from")]
    copied = [source for value in values for source in value.split()[:-1]]
    assert [source for source in copied if not (ROOT / source).exists() or not is_in_context(source)] == []
    library = "openai_cpu_server/kernels/libocs_kernels.so"
    for path in (".git", ".venv", "tests", "docs", "deploy/secrets/api_key", library):
        assert not is_in_context(path)


def is_in_context(path: str) -> bool:
    """Read `.dockerignore` as Docker does: the last line that fits a path or a folder above it counts."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    is_in = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        for place in (path, *(str(parent) for parent in Path(path).parents)):
            is_deep = pattern.startswith("**/") and fnmatch.fnmatch(Path(place).name, pattern[3:])
            if is_deep or fnmatch.fnmatch(place, pattern):
                is_in = rule.startswith("!")
    return is_in


def test_the_manual_has_its_arguments_and_their_defaults() -> None:
    rows = (ROOT / "docs" / "deploy.md").read_text()
    for name, _, default in re.findall(r"^ARG (\w+)(=(.*))?$", DOCKERFILE, re.MULTILINE):
        assert f"| `{name}` | {f'`{default}`' if default else 'none'} |" in rows


def would_run(folder: Path, gpu: str) -> subprocess.CompletedProcess[str]:
    """Run the image's commands for packages and llama.cpp with programs that record their arguments."""
    for name in ("apt-get", "llama_wheel", "python", "pip", "useradd", "install"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $* $CMAKE_ARGS" >>{folder}/calls\n')
        (folder / name).chmod(0o755)
    steps = instructions()
    commands = [value for name, value in steps if name == "RUN" and re.search("apt-get|llama_wheel", value)]
    # Programs that the image names by their folder, and folders that it removes, are replaced.
    script = "\n".join(commands).replace("scripts/packaging/", "").replace("/var/lib", str(folder))
    arguments = dict(value.partition("=")[::2] for name, value in steps if name == "ARG")
    env = {**arguments, "GPU": gpu, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["/bin/sh", "-ec", script], env=env, capture_output=True, text=True)
    done.stdout = (folder / "calls").read_text()
    return done


def test_the_image_is_for_the_cpu_alone_unless_a_known_gpu_is_named(tmp_path: Path) -> None:
    calls = would_run(tmp_path, "off").stdout
    assert "-DGGML_NATIVE=OFF" in calls
    assert not re.search("vulkan|glslc|mesa", calls, re.IGNORECASE)
    calls = would_run(tmp_path, "vulkan").stdout
    for words in ("glslc libvulkan-dev", "-DGGML_VULKAN=ON", "libgomp1 libvulkan1 mesa-vulkan-drivers"):
        assert words in calls
    done = would_run(tmp_path, "cuda")
    assert (done.returncode != 0, "GPU=cuda is not known: off or vulkan" in done.stderr) == (True, True)
