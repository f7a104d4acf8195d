"""Builds llama-server from llama-cpp-python's sources, in our server's version so that both sides have
equal kernels, and makes virtual environments for the Python servers and OpenVINO GenAI. All lies in the
user's cache."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.llama_sources import VERSION, Say, jobs, llama_cpp_in, run, unpacked_sources
from openai_cpu_server.config.folders import user_cache_dir

_EXAMPLE_NEEDS = ("openai", "safetensors", "websockets")
"""Packages that the example server imports beside the `server` extra."""
_OPENVINO_NEEDS = ("openvino-genai>=2026.4", "starlette", "uvicorn")
"""Packages of `openvino_server.py`."""
_KERNELS = "-DGGML_NATIVE=ON"
"""Option with which `scripts/bootstrap` builds ours."""
_AMX_TILES = Path(__file__).parents[1] / "packaging" / "amx_tiles.h"
_COMPILER = {"CXXFLAGS": f"-include {shlex.quote(str(_AMX_TILES))} {os.environ.get('CXXFLAGS', '')}"}
"""With GCC 12 llama.cpp dies on CPUs with AMX if compiled without that header, which explains it."""
_CMAKE = (
    _KERNELS,
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def peers_dir() -> Path:
    return user_cache_dir() / "peers" / VERSION


def built_llama_server() -> Path:
    return peers_dir() / "llama-server"


def peer_python() -> Path:
    return peers_dir() / "venv" / "bin" / "python"


def openvino_python() -> Path:
    return peers_dir() / "openvino" / "bin" / "python"


def example_server() -> Path:
    return peers_dir() / "example_server.py"


def set_up(say: Say) -> None:
    """Build what is missing, which takes ten minutes on two cores, once. Raises SetupFailed."""
    peers_dir().mkdir(parents=True, exist_ok=True)
    if not openvino_python().is_file():
        say("installing OpenVINO GenAI in a virtual environment")
        _make_venv(openvino_python().parents[1], _OPENVINO_NEEDS)
    if built_llama_server().is_file() and peer_python().is_file():
        return
    with tempfile.TemporaryDirectory(dir=peers_dir(), prefix="partial-") as folder:
        sources = unpacked_sources(Path(folder), say)
        shutil.copy(sources / "examples" / "server" / "server.py", example_server())
        if not built_llama_server().is_file():
            _build(sources, Path(folder) / "build", say)
        if not peer_python().is_file():
            # Ours will not do: the example server needs all parts of llama-cpp-python.
            say("building llama-cpp-python for its servers, in a virtual environment: some minutes")
            _make_venv(peer_python().parents[1], (f"{sources}[server]", *_EXAMPLE_NEEDS))


def _build(sources: Path, tree: Path, say: Say) -> None:
    say(f"building llama-server with {jobs()} jobs (CMAKE_BUILD_PARALLEL_LEVEL): some minutes")
    run(["cmake", "-S", str(llama_cpp_in(sources)), "-B", str(tree), *_CMAKE], extra=_COMPILER)
    run(["cmake", "--build", str(tree), "--target", "llama-server", "--parallel", jobs()])
    shutil.move(tree / "bin" / "llama-server", built_llama_server())


def _make_venv(folder: Path, packages: Sequence[str]) -> None:
    partial = folder.with_name(f"{folder.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(partial)])
    pip = [str(partial / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    build = {**_COMPILER, "CMAKE_ARGS": _KERNELS, "CMAKE_BUILD_PARALLEL_LEVEL": jobs()}
    run([*pip, *packages], extra=build)
    partial.rename(folder)
