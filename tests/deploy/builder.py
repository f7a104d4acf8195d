"""Builds an image without a daemon: the steps of a Dockerfile, run in folders that bubblewrap makes the root.

Mounts are those of bubblewrap's own namespace, and end with it: nothing can be left behind but the folders.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.deploy.dockerfile import ROOT, Stage, assignments, filled_in

_STEP_S = 3600
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
_FROM_HERE = (
    "PIP_INDEX_URL",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "https_proxy",
    "http_proxy",
    "no_proxy",
)


@dataclass
class Image:
    """The files of a stage, and what it says about running them."""

    root: Path
    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"

    def inside(self, path: str) -> Path:
        """Where a path of the image lies on this machine."""
        return self.root / os.path.normpath(PurePosixPath("/", self.folder, path)).lstrip("/")


def build(all_stages: list[Stage], base: Path, work: Path, asked: Mapping[str, str]) -> Image:
    """Run all stages, each from a copy of `base`, and return the last. `asked` are the build's arguments."""
    images: dict[str, Image] = {}
    for number, stage in enumerate(all_stages):
        root = work / f"stage-{number}"
        subprocess.run(["cp", "--archive", str(base), str(root)], check=True)
        image = images[stage.name] = Image(root, {"PATH": _PATH})
        _build_stage(stage, image, images, asked)
    return images[all_stages[-1].name]


def _build_stage(stage: Stage, image: Image, images: Mapping[str, Image], asked: Mapping[str, str]) -> None:
    for step in stage.steps:
        if step.name == "ARG":
            image.arguments.update((name, asked.get(name, value)) for name, value in assignments(step))
        elif step.name == "ENV":
            known = image.environment | image.arguments
            image.environment.update((name, filled_in(value, known)) for name, value in assignments(step))
        elif step.name == "WORKDIR":
            image.folder = step.value
            image.inside("").mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY":
            _copy(step.words, image, images)
        elif step.name == "RUN":
            run_in(image, step.command, check=True)


def _copy(words: list[str], image: Image, images: Mapping[str, Image]) -> None:
    *sources, target = [word for word in words if not word.startswith("--")]
    stages = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
    for source in sources:
        origin = images[stages[0]].inside(source) if stages else ROOT / source
        to = image.inside(target)
        if origin.is_dir():
            ignore = None if stages else _what_git_does_not_know
            shutil.copytree(origin, to, symlinks=True, dirs_exist_ok=True, ignore=ignore)
        else:
            to = to / origin.name if target.endswith("/") else to
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origin, to)


def _what_git_does_not_know(folder: str, names: list[str]) -> set[str]:
    """What `.dockerignore` leaves out within the folders that it lets in."""
    return {name for name in names if name == "__pycache__" or fnmatch.fnmatch(name, "libocs_kernels.*")}


def run_in(image: Image, command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
    """Run as root in the image, which may be written; like RUN, with the build's arguments as variables."""
    bubble = ["bwrap", "--bind", str(image.root), "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    network = ["--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf"]
    caps = ["--cap-add", "ALL", "--die-with-parent", "--unshare-pid", "--chdir", image.folder]
    done = subprocess.run(
        [*bubble, *network, *caps, "--", *command],
        env={**image.environment, **image.arguments, **_of_this_machine()},
        capture_output=True,
        text=True,
        timeout=_STEP_S,
    )
    if check and done.returncode:
        raise AssertionError(f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done


def _of_this_machine() -> dict[str, str]:
    """How its programs reach package indexes, where that is not as everywhere."""
    return {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"} | {
        name: os.environ[name] for name in _FROM_HERE if name in os.environ
    }
