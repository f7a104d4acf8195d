"""What scripts/serve sets llama.cpp up for. Python and what compiles are stand-ins; the scripts are real."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    *(
        "bash",
        "cat",
        "cp",
        "dirname",
        "env",
        "find",
        "flock",
        "grep",
        "head",
        "mkdir",
        "mktemp",
        "mv",
        "nproc",
    ),
    *("readlink", "rm", "sed", "sha256sum", "tail", "tee", "touch", "uname"),
)
PYTHON = """#!/bin/bash
# Its virtual environments have it too; pip says what it was asked for, and makes what it was asked for.
case "$1 $2" in
"-m venv")
    mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    for name in python pip openai-cpu-server; do cp "$STAND_INS/python3" "$3/bin/$name"; done ;;
"-m pip")
    echo "$*" >>"$CALLS"
    if [[ $3 == wheel ]]; then
        echo "CMAKE_ARGS=$CMAKE_ARGS CXXFLAGS=$CXXFLAGS" >>"$CALLS"
        echo "[1/2] compiled"
        [[ -z $INTERRUPTED ]] || kill -INT 0
        touch "${@: -1}/llama.whl"
    fi ;;
"-m openai_cpu_server.kernels.build") ;;
"serve "*) shift && echo "serves $*" ;;
"-c import hashlib"*) sha256sum | head -c 16 ;;
"-c "*platform*) echo "3.13 linux" ;;
"-c "*) ;;
esac
"""
COMPILER = """#!/bin/bash
# Its headers of Vulkan are of version $VULKAN, those of SPIR-V are there if $SPIRV says so.
case "$*" in
*--version*) echo "c++ 12" ;;
*-E*) asked=$(cat); case $asked in
    *spirv.hpp*) [[ -n $SPIRV ]] ;;
    *) echo "$VULKAN" ;;
    esac ;;
esac
"""


@dataclass
class Machine:
    """A checkout and the tools that it finds. `tools`: what each prints, whatever it is asked."""

    folder: Path
    tools: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in ("scripts", "requirements", "openai_cpu_server/kernels/native"):
            shutil.copytree(ROOT / path, self.folder / path)
        shutil.copy(ROOT / "openai_cpu_server/kernels/build.py", self.folder / "openai_cpu_server/kernels")
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        self.bin.mkdir()
        for name in NEEDED:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.write("python3", PYTHON)
        self.write("c++", COMPILER)
        self.write("cmake", "#!/bin/bash\n")

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def wheels(self) -> set[str]:
        folder = self.folder / "cache/openai-cpu-server/wheels"
        return {path.parent.name for path in folder.glob("*/llama.whl")}

    def write(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def serve(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        for name, says in self.tools.items():
            self.write(name, f"#!/bin/bash\ncat <<'EOT'\n{says}\nEOT\n")
        (self.folder / "calls").unlink(missing_ok=True)
        variables = {
            "PATH": str(self.bin),
            "STAND_INS": str(self.bin),
            "CALLS": str(self.folder / "calls"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "CUDA_PATH": str(self.folder / "absent"),
            "VULKAN": "309",
            "SPIRV": "yes",
        }
        return subprocess.run(
            [str(self.folder / "scripts/serve"), *arguments],
            env=variables | self.environment | environment,
            capture_output=True,
            text=True,
            start_new_session=True,
        )

    def compiled_for(self, *arguments: str, **environment: str) -> str:
        """What CMake was told at the start that this is."""
        done = self.serve(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        (told,) = [call for call in self.calls if call.startswith("CMAKE_ARGS=")]
        return told


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_cpu_alone_is_built_for_unless_somebody_wishes_a_gpu(machine: Machine) -> None:
    machine.tools = {"nvidia-smi": "GPU 0: one", "nvcc": "release 13", "glslc": "shaderc"}
    told = machine.compiled_for("--port", "81")
    assert "GGML_VULKAN" not in told
    assert "GGML_CUDA" not in told
    assert "layer_settings" not in told


def test_each_kind_has_a_wheel_of_its_own_and_nothing_is_compiled_twice(machine: Machine) -> None:
    machine.tools = {"glslc": "shaderc"}
    machine.compiled_for()
    assert "-DGGML_VULKAN=ON" in machine.compiled_for("--gpu", "vulkan")
    assert len(machine.wheels) == 2
    for kind in ("off", "vulkan"):
        assert "installing packages" in machine.serve("--gpu", kind).stderr, "the other kind's is installed"
        assert [call.split()[2] for call in machine.calls].count("wheel") == 0
    assert "installing packages" not in machine.serve("--gpu", "vulkan").stderr


def test_the_option_is_no_argument_of_the_server_and_goes_before_the_variable(machine: Machine) -> None:
    machine.tools = {"nvcc": "release 13", "glslc": "shaderc"}
    assert "-DGGML_VULKAN=ON" in machine.compiled_for(OCS_GPU="vulkan")
    done = machine.serve("--model", "a b", "--gpu=cuda", "--gpu-layers", "auto", OCS_GPU="vulkan")
    assert done.stdout == "serves --model a b --gpu-layers auto\n"
    assert "-DGGML_CUDA=ON" in "".join(machine.calls)


@pytest.mark.parametrize("arguments", [["--gpu", "opengl"], ["--gpu"], ["--gpu="]], ids=" ".join)
def test_an_unknown_gpu_is_refused(machine: Machine, arguments: Sequence[str]) -> None:
    done = machine.serve(*arguments)
    assert (done.returncode, done.stdout, machine.calls) == (1, "", [])
    assert done.stderr.startswith("setup: --gpu and OCS_GPU are auto, vulkan, cuda, metal or off, not '")


def test_what_a_gpu_needs_is_said_before_anything_is_compiled(machine: Machine) -> None:
    done = machine.serve("--gpu", "vulkan", VULKAN="", SPIRV="")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "setup: --gpu vulkan needs glslc, libvulkan-dev, spirv-headers "
        "(Debian: apt install glslc libvulkan-dev spirv-headers)"
    )
    machine.tools = {"glslc": "shaderc"}
    assert (
        "version 1.3.239 (Debian 12) or later, not 204"
        in machine.serve("--gpu", "vulkan", VULKAN="204").stderr
    )
    assert "setup: --gpu cuda needs nvcc" in machine.serve("--gpu", "cuda").stderr
    assert not machine.wheels


def test_headers_of_debian_12_get_what_they_lack(machine: Machine) -> None:
    machine.tools = {"glslc": "shaderc"}
    header = machine.folder / "scripts/packaging/vulkan_layer_settings.h"
    assert f"-include '{header}'" in machine.compiled_for("--gpu", "vulkan", VULKAN="239")
    assert header.exists()


def test_headers_of_another_version_are_another_wheel_however_much_glslc_says(machine: Machine) -> None:
    machine.tools = {"glslc": "shaderc\n" * 100_000}
    for version in ("309", "310"):
        machine.compiled_for("--gpu", "vulkan", VULKAN=version)
    assert len(machine.wheels) == 2


DISCRETE = "deviceType = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU"
SOFTWARE = "deviceType = PHYSICAL_DEVICE_TYPE_CPU"


def test_auto_takes_cuda_before_vulkan_where_a_device_and_the_tools_are(machine: Machine) -> None:
    machine.tools = {"glslc": "shaderc", "vulkaninfo": DISCRETE}
    assert "-DGGML_VULKAN=ON" in machine.compiled_for("--gpu", "auto")
    machine.tools |= {"nvidia-smi": "GPU 0: one", "nvcc": "release 13"}
    assert "-DGGML_CUDA=ON" in machine.compiled_for("--gpu", "auto")


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ({"glslc": "shaderc", "vulkaninfo": SOFTWARE}, "neither nvidia-smi nor Vulkan shows one"),
        ({"vulkaninfo": DISCRETE}, "Vulkan lacks glslc (Debian: apt install glslc)"),
        ({"nvidia-smi": "GPU 0: one", "vulkaninfo": SOFTWARE}, "CUDA lacks nvcc"),
    ],
)
def test_auto_serves_on_the_cpu_where_something_is_missing(
    machine: Machine, tools: dict[str, str], why: str
) -> None:
    machine.tools = tools
    done = machine.serve("--gpu", "auto")
    assert done.stdout == "serves \n"
    (line,) = [line for line in done.stderr.splitlines() if "--gpu auto" in line]
    assert line.startswith(f"setup: --gpu auto: the CPU serves alone ({why}")
    (told,) = [call for call in machine.calls if call.startswith("CMAKE_ARGS=")]
    assert "VULKAN" not in told
    assert "CUDA" not in told


def test_ctrl_c_while_it_compiles_leaves_nothing_half_done(machine: Machine) -> None:
    machine.tools = {"glslc": "shaderc"}
    done = machine.serve("--gpu", "vulkan", INTERRUPTED="yes")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "setup: interrupted; what was finished is kept"
    assert [path.suffix for path in (machine.folder / "cache/openai-cpu-server/wheels").iterdir()] == [".log"]
    assert "-DGGML_VULKAN=ON" in machine.compiled_for("--gpu", "vulkan")
