"""`openai-cpu-server pull` and `rm`: models in the hub's cache."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from openai_cpu_server.cli.models import ListedModel, expected_model
from openai_cpu_server.cli.plain_text import bytes_text, printable, say, show
from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.contract.pull import PullError, PullStep
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.model_source.aliases import MODELS_BY_ALIAS, without_tag
from openai_cpu_server.model_source.lazy_hub import hub
from openai_cpu_server.model_source.resolve import hub_name, local_model, projector_of

if TYPE_CHECKING:
    from openai_cpu_server.model_source.hub import HubFile, HubModel

_EXIT_WRONG = 2
_TELL_S = 0.2
_TENTHS = 10
_MB = 10**6
_NICE = 10


def pull(arguments: Sequence[str]) -> None:
    parser = CommandParser(
        "pull",
        description="Download models from the hub into its cache, where serving finds them, and check "
        "them against the hub's hashes. After an interruption the same command resumes.",
    )
    parser.add_argument("name", nargs="+", metavar="NAME", help="as --model takes it, such as qwen3.5:4b")
    parser.add_argument("--json", action="store_true", help="report progress as lines of JSON")
    parser.add_argument(
        "--keep-free",
        type=int,
        default=0,
        metavar="MB",
        help="megabytes of the disk to leave free; default: %(default)s",
    )
    options = parser.parse_args(arguments)
    if options.json:
        os.nice(_NICE)  # processes that compute tokens go first
    console = Console(stderr=True)
    try:
        for name in options.name:
            progress = _JsonLines() if options.json else _Bars(console) if console.is_terminal else _PullLog()
            _pull(name, progress, options.keep_free * _MB)
    except StartupError as error:
        if not options.json:
            raise
        show(msgspec.json.encode(PullError(str(error))).decode())
        sys.exit(_EXIT_WRONG)


class _PullLog:
    """Log of a pull: a line for each tenth of a file."""

    def __init__(self) -> None:
        self._tenths: dict[str, int] = {}

    def begins(self, model: HubModel, verdict: ListedModel) -> None:
        missing = sum(file.missing_bytes for file in model.all_files)
        here = sum(min(file.bytes_here, file.size) for file in model.all_files)
        part = f", {bytes_text(here)} of it are here" if here and missing else ""
        say(f"pulling {model.name}: {bytes_text(missing + here)}{part}")
        say(memory_text(verdict))

    def comes(self, file: HubFile, completed: int) -> None:
        tenth = _TENTHS * completed // max(1, file.size)
        if self._tenths.get(file.path, -1) < tenth:
            self._tenths[file.path] = tenth
            say(f"{printable(file.path)}: {100 * tenth // _TENTHS} % of {bytes_text(file.size)}")

    def ends(self, model: HubModel, path: Path) -> None:
        eyes = f", with its projector {printable(model.projector.path)}" if model.projector else ""
        say(f"{model.name} is on this machine{eyes}: {path}")

    def close(self) -> None: ...


class _Bars(_PullLog):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            console=console,
        )  # fmt: skip
        self._tasks: dict[str, Any] = {}

    def comes(self, file: HubFile, completed: int) -> None:
        if file.path not in self._tasks:
            self._bars.start()
            self._tasks[file.path] = self._bars.add_task(printable(file.path), total=file.size)
        self._bars.update(self._tasks[file.path], completed=completed)

    def close(self) -> None:
        self._bars.stop()


class _JsonLines(_PullLog):
    """Progress for programs, such as the server's own pulls."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s = 0.0
        self._whole: set[str] = set()
        _show(PullStep(status="asking"))

    def begins(self, model: HubModel, verdict: ListedModel) -> None:
        _show(PullStep(status="asked", memory=memory_text(verdict), fits=verdict.fits, name=str(model.name)))

    def comes(self, file: HubFile, completed: int) -> None:
        is_whole = completed >= file.size
        if file.path in self._whole or (not is_whole and time.monotonic() - self._last_s < _TELL_S):
            return
        self._last_s = time.monotonic()
        _show(
            PullStep(
                status="pulling", file=file.path, digest=file.digest, total=file.size, completed=completed
            )
        )
        if is_whole:
            self._whole.add(file.path)
            _show(PullStep(status="verifying", file=file.path, digest=file.digest))

    def ends(self, model: HubModel, path: Path) -> None:
        eyes = projector_of(path, "auto", model.name) if model.projector is not None else None
        projector = None if eyes is None else str(eyes)
        _show(PullStep(status="success", name=str(model.name), path=str(path), projector=projector))


def _show(step: PullStep) -> None:
    show(msgspec.json.encode(step).decode())


def _pull(name: str, progress: _PullLog, keep_free: int) -> None:
    source = hub_name(name)
    if source is None:
        path = local_model(name)  # raises for unknown names, with a hint
        raise StartupError(f"{name} is on this machine, and not from the hub: {path}")
    model = hub.ask_hub(source)
    verdict = expected_model(
        without_tag(name),
        MODELS_BY_ALIAS.get(without_tag(name)),
        sum(file.size for file in model.all_files),
        Machine().free_memory(),
    )
    progress.begins(model, verdict)
    try:
        path = hub.bring(model, progress.comes, keep_free=keep_free)
    finally:
        progress.close()
    progress.ends(model, path)


def memory_text(model: ListedModel) -> str:
    free = Machine().free_memory()
    if not model.fits:
        return (
            f"it will not fit into memory: {bytes_text(free)} are free, and its weights alone take "
            f"{bytes_text(model.size_bytes)}"
        )
    room = f", and {model.pool_tokens:,} tokens beside it" if model.pool_tokens else ""
    return f"it fits into memory: {bytes_text(free)} are free{room}"


def remove(arguments: Sequence[str]) -> None:
    parser = CommandParser(
        "rm",
        description="Remove models from the hub's cache, and partial downloads of the same repository. A "
        "model that a running server uses stays.",
    )
    parser.add_argument("name", nargs="+", metavar="NAME", help="as --model takes it")
    for name in parser.parse_args(arguments).name:
        source = hub_name(name)
        if source is None:
            raise StartupError(f"{name} is not from the hub: remove {local_model(name)}, or its package")
        say(f"removed {source}: {bytes_text(hub.remove_cached(source))} are free now")
