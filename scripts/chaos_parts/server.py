"""A server as a process of its own, which can be killed with its engine at any moment."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

import httpx
import psutil

_START_S = 120
_READER = "openai_cpu_server.reader.process"
_DEATHS = re.compile(r'^ocs_engine_restarts_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)


class Server:
    """`openai-cpu-server serve` on a port of its own; its log goes to `log`."""

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        command = [sys.executable, "-m", "openai_cpu_server", "serve", "--port", "0", "--calibrate", "never"]
        command += ["--model", str(model), "--served-model-name", "chaos", "--drain-seconds", "0", *options]
        self._log = log.open("w")
        self.log = log
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        self.url = ""
        self._killed: set[psutil.Process] = set()

    def __enter__(self) -> Server:
        port = self._wait_for(r"listening on http://127\.0\.0\.1:(\d+)")
        self.url = f"http://127.0.0.1:{port}"
        self._wait_for(r"(ready): ")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)
        self._log.close()

    @property
    def kills(self) -> int:
        """The number of engines that were killed, once each."""
        return len(self._killed)

    def engine(self) -> psutil.Process | None:
        """The running engine; None between two engines. One that is dead or was killed does not count."""
        return next(iter(self._children(readers=False)), None)

    def kill_reader(self) -> bool:
        """Kill one of the processes that read texts; False if there is none at the moment."""
        for reader in self._children(readers=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                reader.kill()
                self._killed.add(reader)
                return True
        return False

    def _children(self, *, readers: bool) -> list[psutil.Process]:
        living = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in set(psutil.Process(self.process.pid).children()) - self._killed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    is_reader = _READER in child.cmdline()
                    if is_reader is readers and child.status() != psutil.STATUS_ZOMBIE:
                        living.append(child)
        return living

    def kill_engine(self) -> bool:
        """False if there is none at the moment."""
        engine = self.engine()
        if engine is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            engine.kill()
            self._killed.add(engine)
            return True
        return False

    def kill_all(self) -> None:
        engine = self.engine()
        self.process.kill()
        self.process.wait()
        if engine is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.kill()

    def rss_mib(self) -> float:
        """The memory of the API process; the engine's is new after every kill."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20

    def deaths(self) -> Counter[str]:
        """The deaths of engines by cause, as the server counts them once
        the last killed one has been replaced."""
        self._wait_until_ready()
        page = httpx.get(self.url + "/metrics", timeout=30).text
        return Counter({cause: int(float(count)) for cause, count in _DEATHS.findall(page)})

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while self.engine() is None or httpx.get(self.url + "/ready", timeout=30).status_code != 200:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the engine does not come back:\n{self.log.read_text()}")
            time.sleep(0.05)

    def _wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")
