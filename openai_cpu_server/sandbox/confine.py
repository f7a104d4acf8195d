"""Confines this process for good, as far as the kernel can."""

from __future__ import annotations

import contextlib
import site
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from openai_cpu_server.sandbox.environment import library_folders
from openai_cpu_server.sandbox.kernel import Refused, give_up_capabilities, give_up_new_privileges
from openai_cpu_server.sandbox.landlock import restrict_files
from openai_cpu_server.sandbox.seccomp import restrict_calls

_PACKAGE = Path(__file__).parents[1]
_SYSTEM = tuple(
    map(
        Path,
        (
            # Libraries, time zones, texts of locales.
            *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share"),
            *("/gnu/store", "/nix/store"),
            *("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/timezone"),
            # Memory, processors and control groups. Landlock itself keeps what other processes hold closed.
            *("/proc", "/sys"),
            *("/dev/random", "/dev/urandom", "/dev/zero"),
        ),
    )
)
_SINKS = (Path("/dev/null"),)
_THREADS = Path("/proc/self/task")


class Confinement(NamedTuple):
    """What holds, and why the rest does not: as one line."""

    holds: tuple[str, ...]
    lacks: tuple[str, ...]

    def __str__(self) -> str:
        lacking = f" (without {'; '.join(self.lacks)})" if self.lacks else ""
        return f"{', '.join(self.holds) or 'none'}{lacking}"


def confine(*, read: Iterable[Path] = (), write: Iterable[Path] = ()) -> Confinement:
    """Of files, this process keeps these paths, whole folders with what will be in them, Python and the
    system's libraries. It cannot be taken back. Call it while there is one thread."""
    if sys.platform != "linux":
        return Confinement((), (f"landlock and seccomp: {sys.platform} has none",))

    def restricted_files() -> str:
        version = restrict_files([*_SYSTEM, *_code(), *read], [*_SINKS, *write])
        return f"v{version}{_of_threads()}"

    holds, lacks = [], []
    for what, restrict in (
        ("no new privileges", give_up_new_privileges),
        ("few capabilities", give_up_capabilities),
        ("landlock", restricted_files),
        ("seccomp", restrict_calls),
    ):
        try:
            holds.append(f"{what} {restrict() or ''}".rstrip())
        except Refused as error:
            lacks.append(f"{what}: {error}")
    return Confinement(tuple(holds), tuple(lacks))


def _code() -> list[Path]:
    """Where Python finds modules and libraries, but for the working directory and the checkout of an editable
    installation: Python searches these, too, but they may hold anything, such as a home."""
    anything = {_PACKAGE.parent, Path(), *_working_directory()}
    searched = [path for path in map(Path, sys.path) if path not in anything]
    installed = (sys.prefix, sys.base_prefix, *site.getsitepackages(), *library_folders())
    return [_PACKAGE, *searched, *map(Path, installed)]


def _working_directory() -> list[Path]:
    with contextlib.suppress(OSError):  # it may be gone
        return [Path.cwd()]
    return []


def _of_threads() -> str:
    """Threads that a library has started before are not restricted in what they open."""
    others = sum(1 for _ in _THREADS.iterdir()) - 1
    return f" but for {others} threads" if others else ""
