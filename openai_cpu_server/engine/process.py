"""Engine process: `python -m openai_cpu_server.engine.process LOG_FORMAT FD`, with llama."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from openai_cpu_server.child_processes.confine import confine
from openai_cpu_server.child_processes.signals import (
    die_with_parent,
    leave_signals_to_parent,
    wake_at_parents_death,
)
from openai_cpu_server.child_processes.spawn import keep_shaders_in
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, ModelKind
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.engine.cores import EngineCpuToken
from openai_cpu_server.engine.embedding import EmbedCore, build_embed_core
from openai_cpu_server.engine.generating import EngineCore, build_core
from openai_cpu_server.engine.loop import EngineChannel, MaySave, run_engine
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.bindings import mtmd_library
from openai_cpu_server.llama.embedder import LlamaEmbedder
from openai_cpu_server.llama.gguf.header import GgufHeader, files_by_name, model_kind
from openai_cpu_server.llama.measure.calibrate import Calibrator
from openai_cpu_server.llama.measure.splits import with_fastest_split
from openai_cpu_server.llama.offload.choice import with_device_or_without
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.storage.private_files import SoleWriter

logger = logging.getLogger(__name__)

_STACK_BYTES = 64 * 2**20
"""Maximum stack of each thread. llguidance recurses over clients' grammars, and 8 MiB suffice for all that
`structured` accepts."""
_MOST_TURNS = 60
"""Turns of a measurement at start, of a second beside batch work. The largest models take 40 s."""


def _load(options: EngineOptions, on_progress: Callable[[float], None]) -> LlamaBackend | LlamaEmbedder:
    def loaded(options: EngineOptions) -> LlamaBackend | LlamaEmbedder:
        if model_kind(GgufHeader(Path(options.model_path))) is ModelKind.GENERATES:
            return LlamaBackend.load_cold(with_fastest_split(options, on_progress), on_progress)
        return LlamaEmbedder.load_cold(options, on_progress)

    return with_device_or_without(loaded, options)


def _build(
    options: EngineOptions,
    backend: LlamaBackend | LlamaEmbedder,
    on_progress: Callable[[float], None],
    turn: EngineCpuToken,
) -> EngineCore | EmbedCore:
    core = (
        build_embed_core(options, backend)
        if isinstance(backend, LlamaEmbedder)
        else calibrated(options, backend, on_progress, turn)
    )
    if options.cache_file is not None:
        wake_at_parents_death()  # from here on it saves its cache and exits when the socket ends
    gc.freeze()  # all this stays: the collector need not look at it again between two steps
    return core


def calibrated(
    options: EngineOptions,
    backend: Backend,
    on_progress: Callable[[float], None],
    turn: EngineCpuToken | None = None,
) -> EngineCore:
    turn = turn or EngineCpuToken()
    if options.cost_dir is None:
        return build_core(options, backend, None)
    is_due = options.calibrate == "start"
    calibrator = Calibrator(
        backend, options, Path(options.cost_dir), on_progress if is_due else lambda fraction: None
    )
    curve = calibrator.stored_curve()
    if curve is None and is_due:
        curve = _measured(calibrator, turn)
    may_measure = options.calibrate != "never"
    return build_core(options, backend, curve, calibrator.measure if may_measure else None)


def _measured(calibrator: Calibrator, turn: EngineCpuToken) -> CostCurve | None:
    """Return None if other engines have more work; the measurement continues when idle."""
    for _ in range(_MOST_TURNS):
        curve = calibrator.measure(lambda: turn.is_wanted)
        if curve is not None or turn.sharing.beside_interactive:
            return curve
        turn.pass_on()
    return None


def _confine(options: EngineOptions) -> None:
    if options.wants_device and options.cost_dir is not None:
        keep_shaders_in(Path(options.cost_dir) / "shaders")
    if options.sandbox == "off":
        logger.info("sandbox: off")
        return
    models = [Path(path) for path in (options.model_path, options.draft_model_path) if path is not None]
    files = [Path(adapter.path) for adapter in options.adapters]
    if options.projector_path is not None:
        files.append(Path(options.projector_path))
        mtmd_library()  # code cannot be loaded later
    folders = [Path(folder) for folder in options.adapter_folders]
    written = [Path(options.cost_dir)] if options.cost_dir is not None else []
    for folder in (*folders, *written):  # a folder that is created later would stay inaccessible
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if options.cache_file is not None:
        files.append(Path(options.cache_file))  # it may be a link
        written.append(Path(options.cache_file).parent)
    parts = [part for model in models for part in files_by_name(model)]
    sandbox = confine(read=[*parts, *files, *folders], write=written, computes_on_gpu=options.wants_device)
    logger.info("sandbox: %s", sandbox)


def _claim(options: EngineOptions) -> MaySave:
    """The first engine may write the cache file. A folder that the user has not named is created."""
    logging.getLogger().setLevel(options.log_level.upper())  # before the first message
    if options.cache_file is None:
        return lambda: False
    path = Path(options.cache_file)
    if options.cache_file_limit is not None:
        with contextlib.suppress(OSError):  # a later message reports that the file cannot be written
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    writer = SoleWriter(path)
    if not writer.may_write():
        logger.info(
            "the prefix cache %s belongs to another server: it is read, and not saved", options.cache_file
        )
    return writer.may_write


def main() -> None:
    threading.stack_size(_STACK_BYTES)
    leave_signals_to_parent()
    die_with_parent()
    set_up_logs("info", "json" if sys.argv[1] == "json" else "console")
    channel = EngineChannel(socket.socket(fileno=int(sys.argv[2])))
    run_engine(channel, load=_load, build_core=_build, claim=_claim, confine=_confine)


if __name__ == "__main__":
    main()
