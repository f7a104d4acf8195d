"""scripts/serve installs llama.cpp. Python and the compilers are stand-ins; the scripts are real."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = """
bash cat cp dirname env find flock grep gzip head ln mkdir mv nproc readlink rm sed sha256sum sleep tail
tar tee touch uname
"""
PYTHON = """#!/bin/bash
# Its virtual environments have this script too; pip records its arguments and creates the wheel.
[[ -z $FAILS || "$*" != *$FAILS* ]] || { echo "$SAYS"; exit 1; }
case "$1 $2 $3" in
"-m venv "*)
    mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    for name in python pip openai-cpu-server; do cp "$STAND_INS/python3" "$3/bin/$name"; done ;;
"-m pip download")
    mkdir -p "$STAND_INS/sdist/vendor/llama.cpp/models/templates"
    tar --create --gzip --file "${@: -1}/llama.tar.gz" --directory "$STAND_INS" sdist ;;
"-m pip wheel")
    echo "$* CMAKE_ARGS=$CMAKE_ARGS CXXFLAGS=$CXXFLAGS" >>"$CALLS"
    echo "[1/2] compiled"
    read -r _ _ _ _ _ session _ </proc/self/stat
    until [[ -z $WAITS_FOR ]] || grep -q "$WAITS_FOR" "$CALLS"; do sleep 0.1; done
    [[ -z $INTERRUPTED ]] || { kill -INT -- "-$session"; tail -f /dev/null; }
    touch "${@: -1}/../../llama.whl" ;;
"-m pip "*) echo "$*" >>"$CALLS" ;;
"-m openai_cpu_server.kernels.build "*)
    echo "$*" >>"$CALLS"
    echo built >openai_cpu_server/kernels/libocs_kernels.so ;;
"serve "*) shift && echo "serves $*" ;;
"-c import hashlib"*) sha256sum | head -c 16 ;;
"-c "*platform*) echo "3.13 linux" ;;
esac
"""
COMPILER = """#!/bin/bash
# Its Vulkan headers have the version $VULKAN; it has SPIR-V headers if $SPIRV is set.
case "$*" in
*--version*) echo "c++ 12" ;;
*-E*) source=$(cat); case $source in
    *spirv.hpp*) [[ -n $SPIRV ]] ;;
    *) echo "$VULKAN" ;;
    esac ;;
esac
"""
TOOLS = {"c++": COMPILER, "glslc": "shaderc", "cmake": "cmake version 3.25.1", "df": "1 1 8000000 50% /"}


class Machine:
    """A checkout and its tools. `tools` has the output of each, or its script; "" means absent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.tools = folder, folder / "bin", dict(TOOLS)
        for path in ("scripts", "requirements", "openai_cpu_server/kernels/native"):
            shutil.copytree(ROOT / path, folder / path)
        for path in ("pyproject.toml", "openai_cpu_server/kernels/build.py"):
            shutil.copy(ROOT / path, folder / path)
        self.bin.mkdir()
        for name in NEEDED.split():
            (self.bin / name).symlink_to(str(shutil.which(name)))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    @property
    def builds(self) -> list[str]:
        return [call for call in self.calls if "CMAKE_ARGS=" in call]

    @property
    def cached(self) -> list[Path]:
        folder = self.folder / "cache/openai-cpu-server/wheels"
        return [path for path in folder.glob("*") if path.suffix != ".log"]

    def serve(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("serve", *arguments, **environment)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        for name, output in {"python3": PYTHON, **self.tools}.items():
            tool = self.bin / name
            tool.unlink(missing_ok=True)
            if output:
                tool.write_text(output if output[0] == "#" else f"#!/bin/bash\ncat <<'EOT'\n{output}\nEOT\n")
                tool.chmod(0o755)
        (self.folder / "calls").write_text("")
        folders = {"PATH": "bin", "STAND_INS": "bin", "CALLS": "calls", "XDG_CACHE_HOME": "cache"}
        env = {name: str(self.folder / folder) for name, folder in folders.items()}
        env |= {"CUDA_PATH": "/-", "VULKAN": "309", "SPIRV": "yes", **environment}
        command = [str(self.folder / "scripts" / script), *arguments]
        return subprocess.run(command, env=env, start_new_session=True, capture_output=True, text=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_each_kind_of_gpu_has_a_wheel_that_is_compiled_once(machine: Machine) -> None:
    machine.tools |= {"nvidia-smi": "GPU 0: one", "nvcc": "release 13"}
    machine.serve("--port", "81")
    assert "work/llama_cpp.cmake' -DGGML_NATIVE=ON" in machine.builds[0]
    assert not {"VULKAN", "CUDA"} & set(re.split("[^A-Z]", machine.builds[0]))
    machine.serve(OCS_GPU="vulkan")
    assert "-DGGML_VULKAN=ON" in machine.builds[0]
    for kind in ("off", "vulkan"):
        assert "installing packages" in machine.serve("--gpu", kind).stderr, (
            "the wheel of the other kind is installed"
        )
        assert not machine.builds
    assert "installing packages" not in machine.serve("--gpu", "vulkan").stderr
    done = machine.serve("--model", "a b", "--gpu=cuda", "--gpu-layers", "auto", OCS_GPU="vulkan")
    assert done.stdout == "serves --model a b --gpu-layers auto\n"
    assert "-DGGML_CUDA=ON" in machine.builds[0]
    assert len(machine.cached) == 3
    machine.tools["glslc"] = "shaderc\n" * 100_000
    machine.serve("--gpu", "vulkan", VULKAN="310")
    (machine.folder / "scripts/packaging/amx_tiles.h").write_text("// another")
    machine.serve("--gpu", "vulkan", VULKAN="310")
    assert len(machine.cached) == 5, "other headers or another recipe need another wheel"


def test_packages_are_installed_while_the_compiler_runs(machine: Machine) -> None:
    """Install packages during the build: the stand-in of the compiler waits for them."""
    done = machine.serve(WAITS_FOR="runtime.txt")
    assert done.stdout == "serves \n"
    assert "setup: llama.cpp 50 %, about" in done.stderr
    installed = [call.split()[-1] for call in machine.calls if " install " in call]
    assert installed[:2] == ["requirements/build.txt", "requirements/runtime.txt"]
    assert installed[-2:] == [str(machine.cached[0] / "llama.whl"), str(machine.folder)]


def test_extras_are_installed_once_and_existing_packages_stay(machine: Machine) -> None:
    machine.serve()
    done = machine.serve("--with", "mcp,ray", "--port", "81")
    assert done.stdout == "serves --port 81\n"
    installed = [call.split()[-1] for call in machine.calls if " install " in call]
    assert installed[-2:] == ["requirements/mcp.txt", "requirements/ray.txt"]
    for done in (machine.serve("--with=ray"), machine.serve(OCS_WITH="mcp"), machine.serve()):
        assert "extra" not in done.stderr
    assert machine.serve("--with", "redis", FAILS="redis.txt", SAYS=NO_INDEX).returncode == 1
    done = machine.serve("--with", "redis,mcp")
    assert re.findall(r"installing the extra (\w+)", done.stderr) == ["redis"]
    assert "installing packages" not in done.stderr


def test_kernels_that_were_not_built_are_built_at_the_next_start(machine: Machine) -> None:
    done = machine.serve(FAILS="kernels.build", SAYS="g++ failed: Killed")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "serves ")
    assert "left out: our kernels" in done.stderr
    done = machine.serve(FAILS="kernels.build", SAYS="g++ failed: Killed")
    assert "left out: our kernels" in done.stderr
    assert "installing packages" not in done.stderr
    assert machine.serve().stdout == "serves \n"
    assert machine.calls[0] == "-m openai_cpu_server.kernels.build"
    machine.serve()
    assert not [call for call in machine.calls if "kernels" in call]


def test_packages_of_developers_are_pinned(machine: Machine) -> None:
    assert machine.run("bootstrap", "dev").returncode == 0
    installed = [call.split()[-1] for call in machine.calls if " install " in call]
    assert installed[-2:] == [str(machine.folder), "requirements/dev.txt"]


def test_the_link_on_the_path_is_created_once_and_removed(machine: Machine) -> None:
    home = machine.folder / "home"
    link = home / ".local/bin/openai-cpu-server"
    for message in ("compiling llama.cpp", ""):
        done = machine.run("install", HOME=str(home))
        assert (done.returncode, done.stdout) == (0, "")
        assert message in done.stderr
        assert f'~/.profile and log in again: export PATH="{link.parent}:$PATH"' in done.stderr
        assert link.readlink() == machine.folder / ".venv/bin/openai-cpu-server"
    done = machine.run("install", HOME=str(home), PATH=f"{machine.bin}:{link.parent}")
    assert done.stderr.endswith(f"\ninstall: openai-cpu-server is {link}\n")
    assert machine.run("install", "--uninstal", HOME=str(home)).returncode == 2
    for _ in range(2):
        assert machine.run("install", "--uninstall", HOME=str(home)).returncode == 0
        assert not link.is_symlink()
    link.write_text("another program")
    for arguments in ((), ("--uninstall",)):
        done = machine.run("install", *arguments, HOME=str(home))
        assert (done.returncode, link.read_text()) == (1, "another program")
        assert "does not belong to this checkout" in done.stderr


NOT_IN_INDEX = "ERROR: Could not find a version that satisfies the requirement ninja==1 (from versions: none)"
NO_INDEX = f"""
WARNING: Retrying (Retry(total=0)) after connection broken by 'NameResolutionError("Failed")': /ninja/
{NOT_IN_INDEX}
"""
MISSING = "needs glslc, libvulkan-dev, spirv-headers (Debian: apt install glslc libvulkan-dev spirv-headers)"


@pytest.mark.parametrize(
    ("arguments", "tools", "environment", "line"),
    [
        ("", {"c++": ""}, {}, "no C++ compiler found: install one "),
        ("", {"cmake": ""}, {}, "no CMake found: install it"),
        ("", {"cmake": "cmake version 3.18.4"}, {}, "CMake 3.21 or newer is needed, not "),
        ("", {"df": "1 1 9000 50% /"}, {}, "has 8 MB left, and set-up takes 1000 MB"),
        ("", {}, {"FAILS": "version_info <"}, "Python 3.10 or newer is needed (Debian: apt install python3"),
        ("", {}, {"FAILS": "-m venv"}, "cannot make virtual environments (Debian: apt install python3-venv)"),
        ("", {}, {"FAILS": "build.txt", "SAYS": NO_INDEX}, "no package index answers. Connect this machine"),
        (
            "",
            {},
            {"FAILS": "build.txt", "SAYS": NOT_IN_INDEX},
            "the index has no ninja==1 for this Python. Name one",
        ),
        ("", {}, {"FAILS": "runtime.txt", "SAYS": "[Errno 28] No space left on device"}, "the disk is full"),
        ("", {}, {"FAILS": "pip wheel", "SAYS": "fatal: No space left on device"}, "the disk is full"),
        ("", {}, {"FAILS": "pip wheel", "SAYS": "x.cpp:1: error: y"}, "llama.cpp failed: x.cpp:1: error: y"),
        ("--gpu vulkan", {"glslc": ""}, {"VULKAN": "", "SPIRV": ""}, MISSING),
        ("--gpu vulkan", {}, {"VULKAN": "204"}, "version 1.3.239 (Debian 12) or later, not 204"),
        ("--gpu cuda", {}, {}, "--gpu cuda needs nvcc"),
        ("--gpu opengl", {}, {}, "setup: --gpu or OCS_GPU: unknown kind 'opengl'; use auto"),
        ("--gpu", {}, {}, "unknown kind ''; use auto, vulkan, cuda, metal or off"),
        ("--gpu=", {}, {}, "unknown kind ''; use auto, vulkan, cuda, metal or off"),
        (
            "--with mcp,rays",
            {},
            {},
            "--with or OCS_WITH: unknown extra 'rays'; the extras are documents, gemma3-270m, heic, mcp, "
            "minilm, otel, postgres, ray, redis, sound",
        ),
        ("--with", {}, {}, "unknown extra ''; the extras are documents"),
    ],
)
def test_an_obstacle_is_one_line_and_the_next_try_succeeds(
    machine: Machine, arguments: str, tools: dict[str, str], environment: dict[str, str], line: str
) -> None:
    original = dict(machine.tools)
    machine.tools |= tools
    done = machine.serve(*arguments.split(), **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert line in done.stderr.splitlines()[-1]
    assert not machine.cached
    machine.tools = original
    assert machine.serve().stdout == "serves \n"


DISCRETE = "deviceType = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU"
SOFTWARE = "deviceType = PHYSICAL_DEVICE_TYPE_CPU"
NVIDIA = {"nvidia-smi": "GPU 0: one"}


@pytest.mark.parametrize(
    ("tools", "option", "reason"),
    [
        ({"vulkaninfo": DISCRETE}, "-DGGML_VULKAN=ON", ""),
        ({"vulkaninfo": DISCRETE, "nvcc": "release 13", **NVIDIA}, "-DGGML_CUDA=ON", ""),
        ({"vulkaninfo": SOFTWARE}, "", "neither nvidia-smi nor Vulkan shows one"),
        ({"vulkaninfo": DISCRETE, "glslc": ""}, "", "Vulkan lacks glslc (Debian: apt install glslc)"),
        ({"vulkaninfo": SOFTWARE, **NVIDIA}, "", "CUDA lacks nvcc"),
    ],
)
def test_auto_prefers_cuda_then_vulkan_then_the_cpu(
    machine: Machine, tools: dict[str, str], option: str, reason: str
) -> None:
    machine.tools |= tools
    done = machine.serve("--gpu", "auto")
    assert done.stdout == "serves \n"
    options = [word for word in machine.builds[0].split() if word.startswith(("-DGGML_CUDA", "-DGGML_V"))]
    assert options == [option][: len(option)]
    assert f"setup: --gpu auto: the CPU serves alone ({reason}" in done.stderr or not reason


def test_ctrl_c_during_the_build_leaves_nothing_incomplete(machine: Machine) -> None:
    done = machine.serve("--gpu", "vulkan", INTERRUPTED="yes")
    assert (done.returncode, done.stdout) == (130, "")
    assert "setup: interrupted; what was finished is kept" in done.stderr.splitlines()
    assert not machine.cached
    assert "creating" in machine.serve("--gpu", "vulkan").stderr, "pip may have left an incomplete package"
