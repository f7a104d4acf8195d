"""One batch, from its input to its output, with the jobs and the engine of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from openai_cpu_server.app import Offline
from openai_cpu_server.commands.batch.input import checked_endpoint, parts
from openai_cpu_server.commands.batch.paths import Paths
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.options import JobOptions
from openai_cpu_server.jobs.records import BatchRecord, BatchStatus, Page
from openai_cpu_server.private_files import replacing

_OWNER = ""
_WINDOW = "720h"
_LOOK_S = 0.2


async def found_or_begun(jobs: Jobs, paths: Paths, options: JobOptions) -> BatchRecord:
    """The batch of an interrupted run of the same input, or a new one. Raises StartupError."""
    known, _ = await jobs.list_batches(_OWNER, Page(limit=1))
    if known:
        await _check_same(jobs, known[0], paths, options)
        return known[0]
    endpoint = checked_endpoint(paths.input, options)
    with paths.input.open("rb") as content:
        file = await jobs.add_file(_OWNER, paths.input.name, content)
    return await jobs.create_batch(
        _OWNER, input_file_id=file.id, endpoint=endpoint, completion_window=_WINDOW
    )


async def run_to_end(
    jobs: Jobs, batch: BatchRecord, offline: Offline, show: Callable[[BatchRecord], None]
) -> BatchRecord:
    """Run the batch until it has ended.

    Raises StartupError if there is no engine (any more); the batch is resumable then.
    """
    engine = asyncio.create_task(offline.fleet.run())
    rows = asyncio.create_task(jobs.run(offline.run_row))
    try:
        while not batch.status.has_ended:
            _check_alive(engine, offline)
            await asyncio.sleep(_LOOK_S)
            batch = await jobs.batch(_OWNER, batch.id)
            show(batch)
    finally:
        await jobs.stop()
        await rows
        await offline.fleet.close()
        await asyncio.wait([engine])
    return batch


async def write(jobs: Jobs, batch: BatchRecord, paths: Paths) -> None:
    """Each file appears when it is complete, the output last."""
    await _write(jobs, batch.error_file_id, paths.errors)
    if batch.error_file_id is None:
        paths.errors.unlink(missing_ok=True)
    await _write(jobs, batch.output_file_id, paths.output)
    if batch.output_file_id is None:
        paths.output.write_bytes(b"")


async def _check_same(jobs: Jobs, batch: BatchRecord, paths: Paths, options: JobOptions) -> None:
    if batch.model != options.model:
        raise StartupError(f"{paths.state} was begun with the model {batch.model}; delete it to begin anew")
    if batch.status is BatchStatus.FAILED:
        raise StartupError(f"{paths.state} is of a batch that failed; delete it to begin anew")
    stored = await jobs.file(_OWNER, batch.input_file_id)
    given = parts(paths.input)
    async for part in jobs.content(stored):
        if next(given, b"") != part:
            break
    else:
        if not next(given, b""):
            return
    raise StartupError(
        f"{paths.state} was begun with another content of {paths.input}; delete it to begin anew"
    )


def _check_alive(running: asyncio.Task[None], offline: Offline) -> None:
    """Raises StartupError: why the engine could not start, or why that of the default model is gone."""
    if running.done():
        running.result()
    status = offline.fleet.default.status()
    if status.state is EngineState.FAILED:
        raise StartupError(f"{status.reason}; the same command goes on where it was")


async def _write(jobs: Jobs, file_id: str | None, path: Path) -> None:
    if file_id is None:
        return
    record = await jobs.file(_OWNER, file_id)
    with replacing(path, mode=0o666) as out:
        async for content in jobs.content(record):
            out.write(content)
