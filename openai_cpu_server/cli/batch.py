"""`openai-cpu-server batch FILE.jsonl -o OUT.jsonl`: runs a batch in this process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from openai_cpu_server.cli.plain_text import say
from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.jobs import ENDPOINTS, Jobs
from openai_cpu_server.jobs.records import BatchRecord, BatchStatus, JobOptions, PageQuery
from openai_cpu_server.jobs.run.rows import MAX_ERRORS, BadLine, InputCheck, InputLine, LineSplitter, url_of
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.jobs.store.files import PART_BYTES
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.server.options import job_options
from openai_cpu_server.server.plans import planned_models
from openai_cpu_server.server.run import OfflineModels, offline
from openai_cpu_server.storage.private_files import replacing

_OWNER = ""
_WINDOW = "720h"
_LOOK_S = 0.2
_ROWS_FAILED, _INTERRUPTED = 1, 130


class BatchPaths(msgspec.Struct, frozen=True):
    input: Path
    output: Path
    errors: Path

    @property
    def state(self) -> Path:
        """Database beside the output, for resuming. Deleted when all is written."""
        return self.output.with_name(self.output.name + ".jobs")

    def check(self, *, may_overwrite: bool) -> None:
        if not self.input.is_file():
            raise StartupError(f"the file {self.input} does not exist")
        for path in (self.output, self.errors):
            if not path.parent.is_dir():
                raise StartupError(f"the directory {path.parent} does not exist")
        if len({path.resolve() for path in (self.input, self.output, self.errors)}) < 3:
            raise StartupError("input, output and errors must be three different files")
        if self.output.exists() and not (may_overwrite or self.state.exists()):
            raise StartupError(f"{self.output} exists already; --overwrite replaces it")

    def forget_state(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self.state.with_name(self.state.name + ending).unlink(missing_ok=True)


def checked_endpoint(path: Path, options: JobOptions) -> str:
    """Return the endpoint of all rows. Raises StartupError with a line for each wrong row."""
    endpoint = _first_url(path, options.max_line_bytes)
    check = InputCheck(endpoint, max_rows=options.max_rows, max_line_bytes=options.max_line_bytes)
    for lines in _lines(path, options.max_line_bytes):
        if not check.feed(lines):
            break
    if errors := check.errors():
        lines_of_errors = [
            f"  {'' if error.line is None else f'line {error.line}: '}{error.message}" for error in errors
        ]
        more = ["and more"] if len(errors) == MAX_ERRORS else []
        raise StartupError("\n".join([f"{path} is not a batch:", *lines_of_errors, *more]))
    return endpoint


def file_chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while part := file.read(PART_BYTES):
                yield part
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error}") from None


def _lines(path: Path, max_line_bytes: int) -> Iterator[list[InputLine]]:
    splitter = LineSplitter(max_line_bytes)
    for part in file_chunks(path):
        yield splitter.feed(part)
    yield splitter.end()


def _first_url(path: Path, max_line_bytes: int) -> str:
    """Return the first valid endpoint, which the other rows must have."""
    for lines in _lines(path, max_line_bytes):
        for line in lines:
            try:
                url = url_of(line)
            except BadLine:
                continue
            if url in ENDPOINTS:
                return url
    raise StartupError(f"no line of {path} has a 'url' that is {' or '.join(ENDPOINTS)}")


@contextmanager
def batch_bar(name: str) -> Iterator[Callable[[BatchRecord], None]]:
    """Yield the function that shows rows done and tokens generated."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(name, total=None, tokens=0, start=False)

    def show(batch: BatchRecord) -> None:
        if batch.total:
            bar.start_task(task)  # its clock starts with the rows, so that loading the model does not count
        num_ended = batch.completed + batch.failed
        bar.update(task, total=batch.total or None, completed=num_ended, tokens=batch.output_tokens)

    with bar:
        yield show


async def resumed_or_new(jobs: Jobs, paths: BatchPaths, options: JobOptions) -> BatchRecord:
    """Return an interrupted batch of the same input, or a new one."""
    batches, _ = await jobs.batches.page(_OWNER, PageQuery(limit=1))
    if batches:
        await _check_same(jobs, batches[0], paths, options)
        return batches[0]
    endpoint = checked_endpoint(paths.input, options)
    with paths.input.open("rb") as content:
        file = await jobs.add_file(_OWNER, paths.input.name, content)
    return await jobs.create_batch(
        _OWNER, input_file_id=file.id, endpoint=endpoint, completion_window=_WINDOW
    )


async def run_to_end(
    jobs: Jobs, batch: BatchRecord, offline: OfflineModels, show: Callable[[BatchRecord], None]
) -> BatchRecord:
    """Run until the batch ends. If the engine fails, it can be resumed."""
    engine = asyncio.create_task(offline.fleet.run())
    rows = asyncio.create_task(jobs.run(offline.run_row))
    try:
        while not batch.status.has_ended:
            if engine.done():
                engine.result()
            status = offline.fleet.default.status()
            if status.state is EngineState.FAILED:
                raise StartupError(f"{status.reason}; the same command continues the batch")
            await asyncio.sleep(_LOOK_S)
            batch = await jobs.batches.get(_OWNER, batch.id)
            show(batch)
    finally:
        await jobs.stop()
        await rows
        await offline.fleet.close()
        await asyncio.wait([engine])
    return batch


async def write(jobs: Jobs, batch: BatchRecord, paths: BatchPaths) -> None:
    """Write whole files, the output last."""
    for file_id, path in ((batch.error_file_id, paths.errors), (batch.output_file_id, paths.output)):
        if file_id is not None:
            with replacing(path, mode=0o666) as out:
                async for content in jobs.files.content((await jobs.files.get(_OWNER, file_id)).id):
                    out.write(content)
        elif path == paths.output:
            path.write_bytes(b"")
        else:
            path.unlink(missing_ok=True)


async def _check_same(jobs: Jobs, batch: BatchRecord, paths: BatchPaths, options: JobOptions) -> None:
    if batch.model != options.model:
        raise StartupError(f"{paths.state} was begun with the model {batch.model}; delete it to start again")
    if batch.status is BatchStatus.FAILED:
        raise StartupError(f"{paths.state} belongs to a batch that failed; delete it to start again")
    stored = await jobs.files.get(_OWNER, batch.input_file_id)
    content = file_chunks(paths.input)
    async for part in jobs.files.content(stored.id):
        if next(content, b"") != part:
            break
    else:
        if not next(content, b""):
            return
    raise StartupError(
        f"{paths.state} was begun with another content of {paths.input}; delete it to start again"
    )


def batch(arguments: Sequence[str]) -> None:
    """Exit with 1 if rows have failed, 130 if interrupted."""
    parser = CommandParser(
        "batch",
        description="Run the requests of a JSONL file, in OpenAI's batch format, without a server. After an "
        "interruption, the same command continues.",
        epilog="All options of serve that concern the model and the engine are accepted too.",
    )
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="one request per line")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.jsonl", help="answers")
    parser.add_argument("--errors", type=Path, help="requests that failed; default: OUT.errors.jsonl")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    options, rest = parser.parse_known_args(arguments)
    output: Path = options.output
    errors = options.errors or output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")
    paths = BatchPaths(options.file, output, errors)
    paths.check(may_overwrite=options.overwrite)
    settings = read_settings(rest, command=parser, is_server=False)
    if settings.calibrate == "idle":  # which a batch never is
        settings = settings.model_copy(update={"calibrate": "start"})
    if not paths.state.exists():
        checked_endpoint(paths.input, job_options(settings, ""))
    sys.exit(_run(paths, settings))


def _run(paths: BatchPaths, settings: Settings) -> int:
    level = settings.log_level if "log_level" in settings.model_fields_set else "warning"
    set_up_logs(level, settings.log_format)
    try:
        done = asyncio.run(_until_interrupted(paths, settings))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"interrupted: the same command continues the batch ({paths.state})")
        return _INTERRUPTED
    paths.forget_state()
    shown = f", {done.failed} failed: {paths.errors}" if done.failed else ""
    say(f"{done.completed} of {done.total} rows: {paths.output}{shown}")
    return _ROWS_FAILED if done.failed else 0


async def _until_interrupted(paths: BatchPaths, settings: Settings) -> BatchRecord:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    plans = planned_models(settings)
    options = job_options(settings, plans[0].name)
    jobs = Jobs(open_database(str(paths.state)), options)
    try:
        batch = await resumed_or_new(jobs, paths, options)
        if not batch.status.has_ended:
            with batch_bar(paths.input.name) as show:
                show(batch)
                batch = await run_to_end(jobs, batch, offline(settings, plans), show)
        await write(jobs, batch, paths)
    finally:
        await jobs.close()
    return batch
