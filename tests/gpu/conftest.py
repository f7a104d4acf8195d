"""llama.cpp with a device: CUDA on a GPU of NVIDIA, else Vulkan on a slow software driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass
class Device:
    """Device, and the variables that show it to a process, hide it, or fill it."""

    name: str
    kind: str
    environment: dict[str, str]
    """Variables of a process that finds the library, and no driver but that of the device."""
    without: dict[str, str]
    """Variables that hide the device."""
    full: dict[str, str] = field(default_factory=dict)
    """Variables with which ggml finds no room on the device, if there are any."""
    keeps_shaders: bool = False

    @contextmanager
    def full_memory(self) -> Iterator[None]:
        """Occupy all of its memory but 64 MiB."""
        if self.full:
            yield
            return
        command = [sys.executable, str(Path(__file__).with_name("take_memory.py")), str(64 << 20)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline() == b"taken\n"
            yield
            holder.communicate()


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE).stdout:
        return cuda(tmp_path_factory.mktemp("cuda"))
    if not shutil.which("glslc"):
        pytest.skip("there is no glslc (Debian: apt install glslc libvulkan-dev spirv-headers)")
    return vulkan(software_driver(), tmp_path_factory.mktemp("vulkan"))


@pytest.fixture
def device_environment(device: Device) -> dict[str, str]:
    return device.environment


def cuda(folder: Path) -> Device:
    return Device("CUDA0", "gpu", with_library("cuda", folder), without={"CUDA_VISIBLE_DEVICES": ""})


def vulkan(driver: Path, folder: Path) -> Device:
    # By default ggml skips devices that compute on the CPU.
    environment = {"VK_ICD_FILENAMES": str(driver), "GGML_VK_VISIBLE_DEVICES": "0"}
    return Device(
        "Vulkan0",
        "cpu",
        with_library("vulkan", folder) | environment,
        without={"VK_ICD_FILENAMES": "/dev/null", "GGML_VK_VISIBLE_DEVICES": ""},
        full={"GGML_VK_FORCE_MAX_BUFFER_SIZE": "65536"},
        keeps_shaders=True,
    )


def with_library(gpu: str, folder: Path) -> dict[str, str]:
    """Return variables with which Python finds the library of set-up's own wheel, whose build takes long."""
    built = subprocess.run(
        [ROOT / "scripts/bootstrap", "wheel", gpu], stdout=subprocess.PIPE, text=True, check=True
    )
    with zipfile.ZipFile(built.stdout.strip()) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("llama_cpp/")])
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), str(ROOT / "scripts")])}


def software_driver() -> Path:
    """Return the driver's manifest for the Vulkan loader. `VK_ICD_FILENAMES` names another.

    Tests are skipped before Mesa 25.0, whose manifest names Vulkan 1.4. Mesa 22.3 counts the buffers in all
    descriptors of a set, even if no shader reads a descriptor and its buffer is freed. Vulkan allows such
    descriptors, ggml leaves some, and the heap is damaged.
    """
    path = os.environ.get("VK_ICD_FILENAMES")
    manifests = [Path(path)] if path else sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    if not manifests:
        pytest.skip("there is no software driver for Vulkan (Debian: apt install mesa-vulkan-drivers)")
    version = json.loads(manifests[0].read_text("utf-8"))["ICD"]["api_version"]
    if tuple(map(int, version.split("."))) < (1, 4):
        pytest.skip(
            f"{manifests[0]} says Vulkan {version}: before Mesa 25.0 it may damage the heap, as 22.3's does "
            "(Debian 12: apt install -t bookworm-backports mesa-vulkan-drivers)"
        )
    return manifests[0]
