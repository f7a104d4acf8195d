"""`openai-cpu-server quantize IN OUT`: converts tensors to smaller types with llama.cpp.

The work runs in its own process (`quantize_worker`). OUT is written whole or not at all, whatever happens to
either process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from openai_cpu_server.child_processes.spawn import child_environment
from openai_cpu_server.cli.plain_text import bytes_text, columns, say, show
from openai_cpu_server.cli.quantize_worker import QuantizeAnswer, QuantizeJob, QuantizeOrder
from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import (
    FILE_TYPES,
    FileType,
    GgufHeader,
    file_type_named,
    is_copy,
    model_files,
    total_bytes,
)
from openai_cpu_server.llama.gguf.heads import head_pattern
from openai_cpu_server.llama.gguf.quantize import (
    Importance,
    QuantizeFailed,
    QuantizeOptions,
    QuantizePlan,
    TypeFallback,
    read_importance,
)
from openai_cpu_server.llama.gguf.tensors import (
    Tensor,
    TensorType,
    file_tensors,
    model_tensors,
    tensor_type_named,
)
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.model_source.resolve import local_model

_FAILED = 1
_LIST = "list"
_WRITING_FAILED = "iostream error"
"""C++'s whole message about a full disk."""
_BUFFER_MIN, _BUFFER_MAX = 64 * 2**20, 8 * 2**30
_PADDING = 32
"""Bytes."""
_SUFFIX = ".gguf"


def quantize(arguments: Sequence[str]) -> None:
    """Exit with 1 if the work fails, 128 + signal if stopped."""
    options = _parser().parse_args(arguments)
    if options.type == _LIST:
        rows = [("type", "bits of most weights", "")]
        for kind in FILE_TYPES.values():
            bits = f"{tensor_type_named(kind.base).bits:.2f}" if kind.base else "-"
            remarks = [kind.remark, "needs --imatrix" if kind.needs_importance else ""]
            rows.append((kind.name, bits, "; ".join(filter(None, remarks))))
        show(columns(rows, right=(1,)))
        return
    kind = file_type_named(options.type)
    if options.source is None or options.output is None:
        raise StartupError("usage: openai-cpu-server quantize IN OUT --type TYPE (see --help)")
    source = SourceModel.read(local_model(options.source))
    num_parts = len(source.files) if options.keep_split else 1
    native_options = _quantize_options(options, kind, GgufHeader(source.path), num_parts=num_parts)
    output = OutputFiles(expanded_path(options.output), num_parts=num_parts)
    output.check(source.files, may_overwrite=options.force)
    try:
        _quantize(source, output, native_options, dry_run=options.dry_run)
    except QuantizeFailed as error:
        why = f"cannot quantise {source.path}: {error}"
        if _WRITING_FAILED in str(error):
            why = f"cannot write {output.path}: the disk is full, or a limit of file sizes is reached"
        say(f"openai-cpu-server: {why}")
        sys.exit(_FAILED)
    except StoppedBySignal as stop:
        say("openai-cpu-server: interrupted, nothing was written")
        sys.exit(stop.exit_code)


def _parser() -> CommandParser:
    parser = CommandParser(
        "quantize",
        description="Store the weights of a GGUF model in fewer bits.",
        epilog="Exit status: 0 success; 1 failure during the work; 2 the model, the type or the use of this "
        "command is wrong; 130 interrupted. OUT is written completely or not at all.",
    )
    add = parser.add_argument
    add(
        "source",
        nargs="?",
        metavar="IN",
        help="PATH, smollm2, demo, or an alias or hf:OWNER/REPO[/FILE] that was downloaded already",
    )
    add("output", nargs="?", metavar="OUT", help="the file to write")
    add("--force", action="store_true", help="replace OUT if it exists")
    add("--keep-split", action="store_true", help="as many parts as IN has (OUT-00001-of-00003.gguf)")
    add("--type", required=True, help="such as q4_k_m or q8_0; list shows all")
    add("--allow-requantize", action="store_true", help="even if IN is quantised: loses more than from f16")
    add("--pure", action="store_true", help="one type for all tensors")
    add("--output-tensor-type", metavar="TYPE", help="type of output.weight, such as q8_0")
    add("--token-embedding-type", metavar="TYPE", help="type of the token embeddings")
    add("--leave-output-tensor", action="store_true", help="output.weight stays as it is in IN")
    add(
        "--tensor-type",
        action="append",
        default=[],
        metavar="NAMES=TYPE",
        help="type of tensors whose name matches a regular expression (ffn_down=q8_0); may be given several "
        "times",
    )
    add("--imatrix", metavar="FILE", help="importance matrix: the smallest types need one")
    add("--threads", type=int, metavar="N", help="default: all CPUs that this process may use")
    add("--dry-run", action="store_true", help="print the result, and write nothing")
    return parser


_TYPE_OF_HEADS = "q8_0"
"""Prediction heads in fewer bits are hardly ever right."""


def _quantize_options(
    options: argparse.Namespace, kind: FileType, header: GgufHeader, *, num_parts: int
) -> QuantizeOptions:
    machine = Machine()
    if options.threads is not None and options.threads < 1:
        raise StartupError(f"--threads must be at least 1, not {options.threads}")
    tensor_types = []
    for text in options.tensor_type:
        pattern, _, name = text.rpartition("=")
        if not pattern:
            raise StartupError(f"--tensor-type {text}: write NAMES=TYPE, such as ffn_down=q8_0")
        tensor_types.append((pattern, tensor_type_named(name).number))
    if (heads := head_pattern(header)) is not None and not options.pure:
        tensor_types.append((heads, tensor_type_named(_TYPE_OF_HEADS).number))
    return QuantizeOptions(
        file_type=kind.number,
        threads=options.threads or machine.num_cpus(),
        is_copy=is_copy(kind),
        is_pure=options.pure,
        keeps_output=options.leave_output_tensor,
        output_type=_number(options.output_tensor_type),
        embedding_type=_number(options.token_embedding_type),
        tensor_types=tuple(tensor_types),
        importance=options.imatrix,
        allows_requantising=options.allow_requantize,
        keeps_parts=num_parts > 1,
        buffer_bytes=min(max(machine.free_memory() // 4, _BUFFER_MIN), _BUFFER_MAX),
    )


def _number(name: str | None) -> int | None:
    return None if name is None else tensor_type_named(name).number


def _quantize(source: SourceModel, output: OutputFiles, options: QuantizeOptions, *, dry_run: bool) -> None:
    importance = read_importance(Path(options.importance)) if options.importance is not None else None
    started = time.monotonic()
    with stoppable() as too_late, QuantizeProcess(QuantizeJob(str(source.path), options)) as child:
        try:
            conversion = Conversion.of(source, child.plan())
        except QuantizeFailed as error:  # about the request, because nothing is written yet
            raise StartupError(f"cannot quantise {source.path}: {error}") from None
        conversion.require_possible(importance, allows_requantising=options.allows_requantising)
        if not dry_run:
            _make(child, conversion, output, too_late)
    seconds = time.monotonic() - started
    title = "would be made" if dry_run else f"made in {seconds:.1f} s"
    made_bytes = conversion.file_bytes if dry_run else sum(file.stat().st_size for file in output.files)
    show("\n".join([f"{output.path.name}: {title}", *_summary(conversion, made_bytes)]))


def _make(
    child: QuantizeProcess, conversion: Conversion, output: OutputFiles, too_late: Callable[[], None]
) -> None:
    """`too_late` is called when the work can no longer be stopped."""
    output.require_room(conversion.file_bytes)
    tensors = [(tensor.name, tensor.num_bytes) for tensor, _ in conversion.tensors]
    with output.folder() as folder:
        made = [folder / file.name for file in output.files]
        with quantize_bar(output.path.name, tensors) as begin:
            child.run(QuantizeOrder(str(folder), str(output.target(folder))), begin)
            begin(len(tensors) + 1)
            conversion.require_made(made)
            for file in made:  # a name must not outlive a power cut without its content
                with file.open("rb") as data:
                    os.fsync(data.fileno())
        too_late()
        for new, file in reversed(list(zip(made, output.files, strict=True))):
            new.replace(file)  # the first part last, because the others are useless without it


_COMMAND = (sys.executable, "-m", "openai_cpu_server.cli.quantize_worker")


class QuantizeProcess:
    """Worker, which is killed when the context ends."""

    def __init__(self, job: QuantizeJob) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )
        self._send(job)

    def plan(self) -> QuantizePlan:
        """Call this once, first of all. Raises QuantizeFailed."""
        plan = self._receive().plan
        assert plan is not None
        return plan

    def run(self, order: QuantizeOrder, on_tensor: Callable[[int], None]) -> None:
        """Call this once, after `plan`. Raises QuantizeFailed."""
        self._send(order)
        while not (answer := self._receive()).is_end:
            assert answer.tensor is not None
            on_tensor(answer.tensor)

    def _send(self, message: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self) -> QuantizeAnswer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death()
        answer = msgspec.json.decode(line, type=QuantizeAnswer)
        if answer.failure is not None:
            raise QuantizeFailed(answer.failure)
        return answer

    def _death(self) -> QuantizeFailed:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return QuantizeFailed("the process was killed; did memory run out?")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").splitlines()
        reasons = [line for line in lines if "GGML_ASSERT" in line] or lines[-1:]
        return QuantizeFailed(f"llama.cpp crashed ({how}){f': {reasons[0].strip()}' if reasons else ''}")

    def __enter__(self) -> QuantizeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class StoppedBySignal(BaseException):
    """BaseException, so that handlers of Exception let it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise StoppedBySignal on a signal until the yielded function is called. Ignored signals (`nohup`) stay
    ignored, and so does a second one, because cleaning up takes no time."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    mine = [n for n, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]

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


class OutputFiles:
    def __init__(self, path: Path, *, num_parts: int = 1) -> None:
        """Follow links, so that a link still points to the model afterwards."""
        self.path = Path(os.path.realpath(path))
        self._stem = self.path.name.removesuffix(_SUFFIX)
        self._is_one = num_parts == 1
        parts = range(1, num_parts + 1)
        names = (f"{self._stem}-{number:05}-of-{num_parts:05}{_SUFFIX}" for number in parts)
        self.files = [self.path] if self._is_one else [self.path.with_name(name) for name in names]

    def check(self, sources: Sequence[Path], *, may_overwrite: bool) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise StartupError(f"the folder {folder} does not exist")
        for file in self.files:
            if file.is_dir():
                raise StartupError(f"{file} is a folder: name the file to write")
            if file.exists() and not file.is_file():
                raise StartupError(f"{file} is not an ordinary file")
            if file.exists() and any(file.samefile(source) for source in sources):
                raise StartupError(f"{file} is the input: name another output")
            if file.exists() and not may_overwrite:
                raise StartupError(f"{file} exists already: --force replaces it")

    def require_room(self, num_bytes: int) -> None:
        """Count the old output, which stays until the end."""
        free = shutil.disk_usage(self.path.parent).free
        if free < num_bytes:
            raise StartupError(
                f"not enough disk space for {self.path}: it needs {bytes_text(num_bytes)}, and "
                f"{bytes_text(free)} are free"
            )

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a temporary folder on the same file system."""
        name, parent = self.path.name, self.path.parent
        try:
            made = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name[:80]}.", suffix=".part"))
        except OSError as error:
            raise StartupError(f"cannot write in {parent}: {error.strerror}") from None
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def target(self, folder: Path) -> Path:
        """Return llama.cpp's argument: a file, or the beginning of the parts' names."""
        return folder / (self.path.name if self._is_one else self._stem)


class SourceModel(msgspec.Struct, frozen=True):
    """Model whose parts all exist in full length."""

    path: Path
    files: list[Path]
    tensors: list[Tensor]

    @classmethod
    def read(cls, path: Path) -> SourceModel:
        header = GgufHeader(path)
        tensors = model_tensors(header)
        if not header.architecture or not tensors:
            raise StartupError(f"{path} is not a model: it has no weights")
        return cls(path, model_files(header), tensors)


class Conversion(msgspec.Struct, frozen=True):
    source: SourceModel
    tensors: list[tuple[Tensor, TensorType]]
    """Tensors with new types, in order of conversion."""
    fallbacks: tuple[TypeFallback, ...]
    needs_importance: bool

    @classmethod
    def of(cls, source: SourceModel, plan: QuantizePlan) -> Conversion:
        tensors = {tensor.name: tensor for tensor in source.tensors}
        kinds = {tensor.type.name: tensor.type for tensor in source.tensors}
        assert sorted(tensors) == sorted(each.name for each in plan.tensors), "the log was read wrongly"
        pairs = [
            (tensors[each.name], kinds.get(each.target) or tensor_type_named(each.target))
            for each in plan.tensors
        ]
        return cls(source, pairs, plan.fallbacks, plan.needs_importance)

    @property
    def tensor_bytes(self) -> int:
        return sum(kind.num_bytes(tensor.num_values) for tensor, kind in self.tensors)

    @property
    def file_bytes(self) -> int:
        """Approximate size, with headers as long as the source's."""
        headers = total_bytes(self.source.files) - sum(tensor.num_bytes for tensor in self.source.tensors)
        return max(0, headers) + self.tensor_bytes + _PADDING * len(self.tensors)

    def require_possible(self, importance: Importance | None, *, allows_requantising: bool) -> None:
        """Check for faults that llama.cpp would notice late or crash with."""
        if self.needs_importance:
            raise StartupError("this type needs an importance matrix: --imatrix FILE (of llama-imatrix)")
        for tensor, kind in self.tensors:
            if kind == tensor.type:
                continue
            if tensor.type.is_quantised and not allows_requantising:
                raise StartupError(
                    f"{self.source.path} is quantised already ({tensor.type.name}), and quantising it again "
                    "loses more than from f16 or f32: --allow-requantize permits it"
                )
            if tensor.shape[0] % kind.block_values:  # types that users choose have no fallback
                raise StartupError(
                    f"{tensor.name} cannot be {kind.name}: its rows of {tensor.shape[0]:,} values are not a"
                    f" multiple of {kind.block_values}"
                )
            if kind.needs_importance and (importance is None or tensor.name not in importance.columns):
                raise StartupError(f"{tensor.name} cannot be {kind.name} without an importance matrix")

    def require_made(self, files: Sequence[Path]) -> None:
        """Check the output, because llama.cpp may miss a full disk. Raises QuantizeFailed."""
        try:
            made = {each.name: each.type for file in files for each in file_tensors(GgufHeader(file))}
        except StartupError as error:
            raise QuantizeFailed(f"the written file is incomplete: {error}") from None
        if made != {tensor.name: kind for tensor, kind in self.tensors}:
            raise QuantizeFailed("the written file has other tensors than were planned")


_LINES_FROM_BYTES = 100_000_000
"""Smaller sources finish before anyone looks into a log."""
_PERCENT_PER_LINE = 10


@contextlib.contextmanager
def quantize_bar(name: str, tensors: Sequence[tuple[str, int]]) -> Iterator[Callable[[int], None]]:
    """Yield the function to call when a tensor begins, by its number from 1; behind the last one, when the
    file is written. Progress is in bytes of the source."""
    console = Console(stderr=True)
    total = sum(num_bytes for _, num_bytes in tensors)
    shown_percent = 0
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[tensor]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(name, total=total, tensor="")

    def begin(number: int) -> None:
        nonlocal shown_percent
        done = sum(num_bytes for _, num_bytes in tensors[: number - 1])
        if number > len(tensors):
            bar.update(task, completed=done, tensor="writing to disk")
            return
        bar.update(task, completed=done, tensor=tensors[number - 1][0])
        percent = 100 * done // max(1, total)
        is_due = percent >= shown_percent + _PERCENT_PER_LINE
        if is_due and total >= _LINES_FROM_BYTES and not console.is_terminal:
            shown_percent = percent - percent % _PERCENT_PER_LINE
            console.print(f"quantize: {percent} % of {bytes_text(total)}", soft_wrap=True, highlight=False)

    with bar:
        yield begin


def _summary(conversion: Conversion, made_bytes: int) -> list[str]:
    """End with the tensors whose rows are not a multiple of a block."""
    source, fallbacks = conversion.source, conversion.fallbacks
    old_bits = 8 * sum(tensor.num_bytes for tensor in source.tensors)
    weights = max(1, sum(tensor.num_values for tensor in source.tensors))
    old = Counter(tensor.type for tensor in source.tensors)
    new = Counter(kind for _, kind in conversion.tensors)
    rows = [
        ("", "before", "after"),
        ("size", bytes_text(total_bytes(source.files)), bytes_text(made_bytes)),
        ("bits per weight", f"{old_bits / weights:.2f}", f"{8 * conversion.tensor_bytes / weights:.2f}"),
        *(
            (f"tensors in {kind.name}", str(old[kind] or "-"), str(new[kind] or "-"))
            for kind in sorted({*old, *new}, key=lambda kind: (-kind.bits, kind.name))
        ),
    ]
    lines = columns(rows, right=(1, 2)).splitlines()
    if fallbacks:
        lines.append(
            f"{len(fallbacks)} of {len(conversion.tensors)} tensors could not have their intended type:"
        )
    kinds = Counter((each.columns, each.block, each.wanted, each.got) for each in fallbacks)
    return lines + [
        f"  {count} with rows of {num_values:,} values, not a multiple of {block} as for {wanted}: {got}"
        for (num_values, block, wanted, got), count in kinds.items()
    ]
