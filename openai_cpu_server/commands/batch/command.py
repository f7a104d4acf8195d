"""The command: arguments, signals, exit codes."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from openai_cpu_server.app import offline
from openai_cpu_server.commands.batch.input import checked_endpoint
from openai_cpu_server.commands.batch.paths import Paths, errors_beside
from openai_cpu_server.commands.batch.progress import BatchBar
from openai_cpu_server.commands.batch.work import found_or_begun, run_to_end, write
from openai_cpu_server.config.command_line import read_settings
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import BatchRecord
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.option_sources import named_by
from openai_cpu_server.server.api_options import job_options
from openai_cpu_server.serving.plans import planned_models
from openai_cpu_server.settings import OPTIONS_OF_SERVERS, Settings

_ROWS_FAILED, _INTERRUPTED = 1, 130


def batch(arguments: Sequence[str]) -> None:
    """Exits with 1 if rows have failed, 130 if it was interrupted. Raises StartupError for wrong use."""
    given, rest = _parser().parse_known_args(arguments)
    paths = Paths(given.file, given.output, given.errors or errors_beside(given.output))
    paths.check(may_overwrite=given.overwrite)
    settings = _settings(rest)
    if not paths.is_resumable:
        checked_endpoint(paths.input, job_options(settings, ""))
    sys.exit(_run(paths, settings, Console(stderr=True)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openai-cpu-server batch",
        description="Run the requests of a JSONL file, in OpenAI's batch format, without a server. "
        "If it is interrupted, the same command goes on.",
        epilog="All options of serve that concern the model and the engine are accepted too.",
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="one request per line")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.jsonl", help="answers")
    parser.add_argument("--errors", type=Path, help="requests that failed; default: OUT.errors.jsonl")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    return parser


def _settings(arguments: Sequence[str]) -> Settings:
    for name in sorted(OPTIONS_OF_SERVERS):
        if given := named_by(name, arguments):
            raise StartupError(f"{given} is for servers: batch has none")
    settings = read_settings(arguments)
    if settings.calibrate == "idle":  # which a batch never is
        return settings.model_copy(update={"calibrate": "start"})
    return settings


def _run(paths: Paths, settings: Settings, console: Console) -> int:
    """The exit code."""
    level = settings.log_level if "log_level" in settings.model_fields_set else "warning"
    set_up_logs(level, settings.log_format)
    try:
        done = asyncio.run(_until_interrupted(paths, settings, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say(console, f"interrupted: the same command goes on where it was ({paths.state})")
        return _INTERRUPTED
    paths.forget_state()
    shown = f", {done.failed} failed: {paths.errors}" if done.failed else ""
    _say(console, f"{done.completed} of {done.total} rows: {paths.output}{shown}")
    return _ROWS_FAILED if done.failed else 0


async def _until_interrupted(paths: Paths, settings: Settings, console: Console) -> BatchRecord:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    plans = planned_models(settings)
    options = job_options(settings, plans[0].name)
    jobs = Jobs(open_database(str(paths.state)), options)
    try:
        batch = await found_or_begun(jobs, paths, options)
        if not batch.status.has_ended:
            with BatchBar(console, paths.input.name) as bar:
                bar.show(batch)
                batch = await run_to_end(jobs, batch, offline(settings, plans), bar.show)
        await write(jobs, batch, paths)
    finally:
        await jobs.close()
    return batch


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)
