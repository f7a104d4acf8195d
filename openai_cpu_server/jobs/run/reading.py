"""Reads the content of a stored file, a few parts at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from openai_cpu_server.jobs.run.lines import Line, LineSplitter
from openai_cpu_server.jobs.store.files import FileStore
from openai_cpu_server.storage.database import DatabaseThreads


class FileReader:
    def __init__(self, files: FileStore, threads: DatabaseThreads) -> None:
        self._files = files
        self._threads = threads

    async def parts(self, file_id: str) -> AsyncIterator[bytes]:
        last = 0
        while found := await self._threads.read(self._files.parts, file_id, last):
            for _, content in found:
                yield content
            last = found[-1][0]

    async def lines(self, file_id: str) -> AsyncIterator[list[Line]]:
        """Yield the lines that end in each group of parts."""
        splitter = LineSplitter()
        async for part in self.parts(file_id):
            yield await anyio.to_thread.run_sync(splitter.feed, part)
        yield splitter.end()
