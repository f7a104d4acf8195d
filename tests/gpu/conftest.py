"""llama.cpp with Vulkan, on Mesa's software driver: a device that computes on the CPU, and is slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def vulkan_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for Python's path: what set-up's own wheel has. It builds for half an hour, and keeps it."""
    if not shutil.which("glslc"):
        pytest.skip("there is no glslc (Debian: apt install glslc libvulkan-dev spirv-headers)")
    built = subprocess.run(
        [ROOT / "scripts/bootstrap", "wheel", "vulkan"], stdout=subprocess.PIPE, text=True, check=True
    )
    folder = tmp_path_factory.mktemp("vulkan")
    with zipfile.ZipFile(built.stdout.strip()) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("llama_cpp/")])
    return folder


@pytest.fixture(scope="session")
def software_driver() -> Path:
    """What the loader of Vulkan is told of it."""
    found = sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    if not found:
        pytest.skip("there is no software driver for Vulkan (Debian: apt install mesa-vulkan-drivers)")
    return found[0]


@pytest.fixture
def device_environment(vulkan_library: Path, software_driver: Path) -> dict[str, str]:
    """Of a process that finds the library, and no driver but that one."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(vulkan_library), str(ROOT), str(ROOT / "scripts")]),
        "VK_ICD_FILENAMES": str(software_driver),
        # By itself ggml passes over devices that compute on the CPU.
        "GGML_VK_VISIBLE_DEVICES": "0",
    }
