"""llama.cpp with Vulkan, on Mesa's software driver: a device that computes on the CPU, and is slow."""

from __future__ import annotations

import json
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
    """What the loader of Vulkan is told of it; `VK_ICD_FILENAMES` names another.

    One older than Mesa 25.0, whose file says Vulkan 1.4, is passed over. That of Mesa 22.3
    keeps count of the buffers in all descriptors of a set, of those too that no shader reads and whose buffer
    is gone: Vulkan allows them, ggml leaves some, and the heap is damaged.
    """
    named = os.environ.get("VK_ICD_FILENAMES")
    found = [Path(named)] if named else sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    if not found:
        pytest.skip("there is no software driver for Vulkan (Debian: apt install mesa-vulkan-drivers)")
    version = json.loads(found[0].read_text("utf-8"))["ICD"]["api_version"]
    if tuple(map(int, version.split("."))) < (1, 4):
        pytest.skip(
            f"{found[0]} says Vulkan {version}: before Mesa 25.0 it may damage the heap, as 22.3's does "
            "(Debian 12: apt install -t bookworm-backports mesa-vulkan-drivers)"
        )
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
