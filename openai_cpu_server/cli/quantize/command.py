"""The command: from arguments to a smaller model, written whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from openai_cpu_server.cli.plain_text import bytes_text, say, show
from openai_cpu_server.cli.quantize.child import QuantizeJob, QuantizeOrder, QuantizeProcess
from openai_cpu_server.cli.quantize.conversion import Conversion, SourceModel
from openai_cpu_server.cli.quantize.report import QuantizeBar, fallback_lines, summary, type_list
from openai_cpu_server.config.folders import expanded
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import FileType, file_type_named, is_copy
from openai_cpu_server.llama.gguf.quantize import QuantizeFailed, QuantizeOptions, read_importance
from openai_cpu_server.llama.gguf.tensors import tensor_type_named
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.model_source import local_model

_BUFFER_MIN, _BUFFER_MAX = 64 * 2**20, 8 * 2**30


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openai-cpu-server quantize",
        description="Store the weights of a GGUF model in fewer bits.",
        epilog="Exit status: 0 done; 1 it failed on the way; 2 the model, the type or the use of this command"
        " is wrong; 130 interrupted. OUT is there whole or not at all.",
        allow_abbrev=False,
    )
    _add_files(parser)
    _add_types(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: all that this process may use")
    parser.add_argument("--dry-run", action="store_true", help="say what would come out, and write nothing")
    return parser


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        metavar="IN",
        help="PATH, smollm2, demo, or an alias or hf:OWNER/REPO[/FILE] that was downloaded already",
    )
    parser.add_argument("output", nargs="?", metavar="OUT", help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--keep-split", action="store_true", help="as many parts as IN has (OUT-00001-of-00003.gguf)"
    )


def _add_types(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--type", required=True, help="such as q4_k_m or q8_0; list shows all")
    parser.add_argument(
        "--allow-requantize", action="store_true", help="even if IN is quantised: loses more than from f16"
    )
    parser.add_argument("--pure", action="store_true", help="all tensors in one type, no mixture")
    parser.add_argument("--output-tensor-type", metavar="TYPE", help="of output.weight, such as q8_0")
    parser.add_argument("--token-embedding-type", metavar="TYPE", help="of the token embeddings")
    parser.add_argument(
        "--leave-output-tensor", action="store_true", help="output.weight stays as it is in IN"
    )
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="NAMES=TYPE",
        help="of tensors whose name a regular expression finds (ffn_down=q8_0); may be given several times",
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix: the smallest types need one")


def quantize_options(given: argparse.Namespace, kind: FileType, *, num_parts: int) -> QuantizeOptions:
    """Return llama.cpp's options. Raises StartupError."""
    machine = Machine()
    if given.threads is not None and given.threads < 1:
        raise StartupError(f"--threads must be at least 1, not {given.threads}")
    return QuantizeOptions(
        file_type=kind.number,
        threads=given.threads or machine.num_cpus(),
        is_copy=is_copy(kind),
        is_pure=given.pure,
        keeps_output=given.leave_output_tensor,
        output_type=_number(given.output_tensor_type),
        embedding_type=_number(given.token_embedding_type),
        tensor_types=tuple(map(_pair, given.tensor_type)),
        importance=given.imatrix,
        allows_requantising=given.allow_requantize,
        keeps_parts=num_parts > 1,
        buffer_bytes=min(max(machine.free_memory() // 4, _BUFFER_MIN), _BUFFER_MAX),
    )


def _number(name: str | None) -> int | None:
    return None if name is None else tensor_type_named(name).number


def _pair(text: str) -> tuple[str, int]:
    pattern, _, name = text.rpartition("=")
    if not pattern:
        raise StartupError(f"--tensor-type {text}: write NAMES=TYPE, such as ffn_down=q8_0")
    return pattern, tensor_type_named(name).number


_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class StoppedBySignal(BaseException):
    """Raised by a signal. Not an `Exception`, so that handlers of those let it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise StoppedBySignal on a signal, until the yielded function is called. Ignored signals (`nohup`)
    stay ignored, and so does a second one, because cleaning up takes no time."""
    before = {number: signal.getsignal(number) for number in _ASKING}
    mine = [number for number, handler in before.items() if handler in _UNTOUCHED]

    def ignore() -> None:
        for number in mine:
            signal.signal(number, signal.SIG_IGN)

    def stop(number: int, _frame: FrameType | None) -> None:
        ignore()
        raise StoppedBySignal(number)

    for number in mine:
        signal.signal(number, stop)
    try:
        yield ignore
    finally:
        for number in mine:
            signal.signal(number, before[number])


_SUFFIX = ".gguf"


class OutputFiles:
    def __init__(self, path: Path, *, num_parts: int = 1) -> None:
        """Follow links, so that a link still points to the model afterwards."""
        self.path = Path(os.path.realpath(path))
        self._num_parts = num_parts

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def files(self) -> tuple[Path, ...]:
        if self._num_parts == 1:
            return (self.path,)
        stem = self.name.removesuffix(_SUFFIX)
        numbers = range(1, self._num_parts + 1)
        return tuple(
            self.path.with_name(f"{stem}-{number:05}-of-{self._num_parts:05}{_SUFFIX}") for number in numbers
        )

    def check(self, sources: Sequence[Path], *, may_overwrite: bool) -> None:
        """Check that the files can and may be written. Raises StartupError."""
        folder = self.path.parent
        if not folder.is_dir():
            raise StartupError(f"there is no folder {folder}")
        for file in self.files:
            if file.is_dir():
                raise StartupError(f"{file} is a folder: name the file that is to be made")
            if file.exists() and not file.is_file():
                raise StartupError(f"{file} is no ordinary file")
            if file.exists() and any(file.samefile(source) for source in sources):
                raise StartupError(f"{file} is what is to be quantised: name another output")
            if file.exists() and not may_overwrite:
                raise StartupError(f"{file} exists already: --force replaces it")

    def require_room(self, num_bytes: int) -> None:
        """Check for space beside the old output, which stays until the end. Raises StartupError."""
        free = shutil.disk_usage(self.path.parent).free
        if free < num_bytes:
            raise StartupError(
                f"not enough disk space for {self.path}: {bytes_text(num_bytes)} are needed, "
                f"{bytes_text(free)} are free"
            )

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a new folder on the same file system. It is removed at the end with its content."""
        try:
            made = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.name[:80]}.", suffix=".part"))
        except OSError as error:
            raise StartupError(f"cannot write in {self.path.parent}: {error.strerror}") from None
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def target(self, folder: Path) -> Path:
        """Return llama.cpp's argument: a file, or the beginning of the parts' names."""
        return folder / (self.name if self._num_parts == 1 else self.name.removesuffix(_SUFFIX))

    def made(self, folder: Path) -> list[Path]:
        return [folder / file.name for file in self.files]

    def settle(self, folder: Path) -> None:
        """Wait for the disk, because a name must not outlive a power cut without its content."""
        for file in self.made(folder):
            with file.open("rb") as data:
                os.fsync(data.fileno())

    def publish(self, folder: Path) -> None:
        """Move the files to their place, the first part last, because the others are useless without it."""
        for made, file in reversed(list(zip(self.made(folder), self.files, strict=True))):
            made.replace(file)


_FAILED = 1
_LIST = "list"
_WRITING_FAILED = "iostream error"
"""C++'s whole message about a full disk."""


def quantize(arguments: Sequence[str]) -> None:
    """Run the command. Exits with 1 if the work fails, 128 + signal if stopped. Raises StartupError."""
    given = parser().parse_args(arguments)
    if given.type == _LIST:
        show(type_list())
        return
    kind = file_type_named(given.type)
    if given.source is None or given.output is None:
        raise StartupError("usage: openai-cpu-server quantize IN OUT --type TYPE (--help says more)")
    source = SourceModel.read(local_model(given.source))
    num_parts = len(source.files) if given.keep_split else 1
    options = quantize_options(given, kind, num_parts=num_parts)
    output = OutputFiles(expanded(given.output), num_parts=num_parts)
    output.check(source.files, may_overwrite=given.force)
    try:
        _quantize(source, output, options, dry_run=given.dry_run)
    except QuantizeFailed as error:
        say(f"openai-cpu-server: {_why(error, source, output)}")
        sys.exit(_FAILED)
    except StoppedBySignal as stop:
        say("openai-cpu-server: interrupted, nothing was written")
        sys.exit(stop.exit_code)


def _quantize(source: SourceModel, output: OutputFiles, options: QuantizeOptions, *, dry_run: bool) -> None:
    importance = read_importance(Path(options.importance)) if options.importance is not None else None
    started = time.monotonic()
    with stoppable() as too_late, QuantizeProcess(QuantizeJob(str(source.path), options)) as child:
        conversion = _planned(child, source)
        conversion.require_possible(importance, allows_requantising=options.allows_requantising)
        if not dry_run:
            _make(child, conversion, output, too_late)
    seconds = time.monotonic() - started
    title = "would be made" if dry_run else f"made in {seconds:.1f} s"
    made_bytes = conversion.file_bytes if dry_run else sum(file.stat().st_size for file in output.files)
    lines = summary(f"{output.name}: {title}", conversion, made_bytes)
    show("\n".join([*lines, *fallback_lines(conversion)]))


def _planned(child: QuantizeProcess, source: SourceModel) -> Conversion:
    """Errors here are about the request, because nothing is written yet."""
    try:
        return Conversion.of(source, child.plan())
    except QuantizeFailed as error:
        raise StartupError(f"cannot quantise {source.path}: {error}") from None


def _make(
    child: QuantizeProcess, conversion: Conversion, output: OutputFiles, too_late: Callable[[], None]
) -> None:
    """`too_late` is called when the work can no longer be stopped."""
    output.require_room(conversion.file_bytes)
    tensors = [(tensor.name, tensor.num_bytes) for tensor, _ in conversion.tensors]
    with output.folder() as folder:
        with QuantizeBar(Console(stderr=True), output.name, tensors) as bar:
            child.run(QuantizeOrder(str(folder), str(output.target(folder))), bar.begin)
            bar.end()
            conversion.require_made(output.made(folder))
            output.settle(folder)
        too_late()
        output.publish(folder)


def _why(error: QuantizeFailed, source: SourceModel, output: OutputFiles) -> str:
    if _WRITING_FAILED in str(error):
        return f"cannot write {output.path}: the disk is full, or a limit of file sizes is reached"
    return f"cannot quantise {source.path}: {error}"
