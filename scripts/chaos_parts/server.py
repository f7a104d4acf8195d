"""A server as a process of its own, which can be killed with its engine at any moment."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import bench.servers
import httpx
import psutil
from bench.servers import OUR_COMMAND, ServerSpec

_READER = "openai_cpu_server.reader.process"
_DEATHS = re.compile(r'^ocs_engine_restarts_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)


class KillableServer(bench.servers.Server):
    """A server whose processes can be killed; its log goes to `log`."""

    def __init__(self, spec: ServerSpec, log: Path) -> None:
        self._killed: set[psutil.Process] = set()
        self._log = log.open("w")
        super().__init__(spec, log.parent, self._log.write)

    def __enter__(self) -> KillableServer:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._log.close()

    @property
    def kills(self) -> int:
        return len(self._killed)

    def kill_engine(self) -> bool:
        raise NotImplementedError

    def rss_mib(self) -> float:
        """Return the memory of the HTTP process, because an engine's is new after every kill."""
        raise NotImplementedError

    def deaths(self) -> Counter[str]:
        """Return deaths of engines by cause, which the server counts once the last one has been replaced."""
        raise NotImplementedError

    def _kill_one_of(self, processes: Sequence[psutil.Process]) -> bool:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                self._killed.add(process)
                return True
        return False


class Server(KillableServer):
    """`openai-cpu-server serve` with models as its option takes them: `NAME=SPEC`."""

    def __init__(self, models: Sequence[str], log: Path, *options: str) -> None:
        named = [part for model in models for part in ("--model", model)]
        steady = ("--port", "{port}", "--calibrate", "never", "--drain-seconds", "0")
        super().__init__(ServerSpec("ours", (*OUR_COMMAND, *named, *steady, *options), ready="/ready"), log)

    def engines(self) -> list[psutil.Process]:
        return self._children(readers=False)

    def kill_engine(self) -> bool:
        return self._kill_one_of(self.engines())

    def kill_reader(self) -> bool:
        return self._kill_one_of(self._children(readers=True))

    def kill_all(self) -> None:
        engines = self.engines()
        self.process.kill()
        self.process.wait()
        self._kill_one_of(engines)

    def rss_mib(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss) / 2**20

    def deaths(self) -> Counter[str]:
        while not self.engines() and self.process.poll() is None:
            time.sleep(0.05)
        self.wait_until_ready()
        page = httpx.get(self.url + "/metrics", timeout=30).text
        return Counter({cause: int(float(count)) for cause, count in _DEATHS.findall(page)})

    def _children(self, *, readers: bool) -> list[psutil.Process]:
        living = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in set(psutil.Process(self.pid).children()) - self._killed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    is_reader = _READER in child.cmdline()
                    if is_reader is readers and child.status() != psutil.STATUS_ZOMBIE:
                        living.append(child)
        return living
