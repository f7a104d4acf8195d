"""Packages of `scripts/package` can be installed, serve, and report correctly on which CPUs they run."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from openai_cpu_server.kernels.build import LEVELS
from tests.deploy import ROOT
from tests.deploy.test_dockerfile import instructions

SCRIPT = ROOT / "scripts" / "package"


def run(*arguments: str, dist: Path) -> str:
    """Run the script; skip the test if a compiler or an emulator is missing."""
    environment = {**os.environ, "DIST": str(dist)}
    done = subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True)
    if missing := re.search(r"package: there is no .*", done.stderr):
        pytest.skip(missing[0])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("build", dist=folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestBuilt:
    def test_wheels_have_kernels_for_every_level_and_no_other_library(self, dist: Path) -> None:
        for architecture, levels in LEVELS.items():
            (wheel,) = dist.glob(f"*-py3-none-manylinux_*_{architecture}.whl")
            names = zipfile.ZipFile(wheel).namelist()
            libraries = {Path(name).name for name in names if ".so" in name}
            assert libraries == {f"libocs_kernels.{level}.so" for level in levels}
            assert "openai_cpu_server/model_assets/demo.gguf" in names
            assert not [name for name in names if "page/source" in name or "node_modules" in name]

    def test_the_image_can_be_built_from_the_archive(self, dist: Path) -> None:
        (archive,) = dist.glob("*-image.tar.gz")
        with tarfile.open(archive) as tar:
            names = tar.getnames()
        values = [value for name, value in instructions() if name == "COPY" and not value.startswith("--")]
        copied = {name for value in values for name in value.split()[:-1]}
        needed = {"deploy/Dockerfile", *copied}
        assert needed <= set(names)
        assert not [name for name in names if "libocs_kernels" in name or "node_modules" in name]

    def test_they_are_installed_and_serve(self, dist: Path) -> None:
        folders = (Path.home() / ".cache/openai-cpu-server/wheels").glob("*/")
        newest = sorted(folders, key=os.path.getmtime)[-1:]
        report = run("check", *map(str, newest), dist=dist)
        for fact in (
            "Haswell: avx2 suits",
            "cortex-a57: neon suits",
            "cortex-a57: neon-dotprod is for other",
        ):
            assert fact in report
        assert "serves: Once" in report
