"""A portable build has a library for each level of CPU, and each machine takes the best that it can run."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from openai_cpu_server.kernels import build
from openai_cpu_server.kernels.build import LEVELS, LIBRARY, build_portable, level_library
from openai_cpu_server.kernels.library import library_path, obstacle
from tests.kernels.library import KERNELS, ROOT

HERE = list(LEVELS.get(platform.machine(), {}))
_CHOICE_PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from openai_cpu_server.kernels.library import library_path, obstacle
path = library_path(Path(sys.argv[1]))
print(path.name, obstacle(path))
"""

pytestmark = pytest.mark.skipif(not HERE, reason="no levels of this architecture are known")


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return tmp_path / LIBRARY.name


def test_levels_are_the_paths_of_the_code() -> None:
    paths = (ROOT / "openai_cpu_server/kernels/native/cpu.hpp").read_text()
    assert [level for levels in LEVELS.values() for level in levels if f'"{level}"' not in paths] == []


def test_the_first_usable_library_is_taken_or_the_last_gives_the_reason(native: Path) -> None:
    assert library_path(native) == native
    assert "not built" in (obstacle(native) or "")
    levels = [level_library(level, native) for level in HERE]
    for path in levels:
        path.write_bytes(b"no library")
    assert library_path(native) == levels[-1]
    assert "cannot be loaded" in (obstacle(levels[-1]) or "")
    if why_not := obstacle(KERNELS):
        pytest.skip(why_not)
    for path in (*levels[1:][::-1], native):
        shutil.copy(KERNELS, path)
        assert library_path(native) == path


def test_an_unknown_architecture_has_no_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "abacus")
    with pytest.raises(build.BuildFailed, match="abacus"):
        build_portable()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_cpu_gets_the_library_of_its_level(native: Path) -> None:
    """The emulator presents the chosen CPU, and ends the process at an instruction that this CPU lacks."""
    if platform.machine() != "x86_64" or not shutil.which("qemu-x86_64"):
        pytest.skip("there is no qemu-x86_64")
    build_portable(beside=native)
    packages = str(metadata.distribution("llama-cpp-python").locate_file(""))
    choice = ["-S", "-c", _CHOICE_PROGRAM, str(native), str(ROOT), packages]
    expected = {"Haswell": "None", "Nehalem": "the library was compiled for another CPU"}
    for cpu, why_not in expected.items():
        done = subprocess.run(
            ["qemu-x86_64", "-cpu", cpu, str(Path(sys.executable).resolve()), *choice],
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"{level_library('avx2', native).name} {why_not}\n", done.stderr
