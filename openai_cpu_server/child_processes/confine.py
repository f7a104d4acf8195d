"""Irrevocable restrictions by landlock, seccomp and dropped privileges."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import site
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from openai_cpu_server.child_processes.kernel import (
    KernelRefused,
    call,
    give_up_capabilities,
    give_up_new_privileges,
    restrict_calls,
)
from openai_cpu_server.child_processes.spawn import driver_manifests, library_folders

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Equal on all architectures."""
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 5, 1 << 7, 1 << 8
_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG
_IOCTL_DEVICE = 1 << 15
_DEVICE = _READ | _WRITE_FILE | _IOCTL_DEVICE
_OF_A_FILE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
"""Rights on a single file."""
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock version -> number of file rights; later versions have no more. No process may execute files."""
_NETWORK_RIGHTS, _NETWORK_SINCE = 0b11, 4
_SCOPES, _SCOPES_SINCE = 0b11, 6
"""Abstract sockets and signals."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def restrict_files(read: Iterable[Path], write: Iterable[Path], devices: Iterable[Path] = ()) -> int:
    """Restrict this thread and later ones, and return landlock's version. Raises `KernelRefused`."""
    version = call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    files = (1 << _FILE_RIGHTS.get(version, _FILE_RIGHTS[5])) - 1
    has_network, has_scopes = version >= _NETWORK_SINCE, version >= _SCOPES_SINCE
    ruleset = _Ruleset(files, _NETWORK_RIGHTS * has_network, _SCOPES * has_scopes)
    size = 8 * (1 + has_network + has_scopes)
    rules = call(_CREATE_RULESET, ctypes.cast(ctypes.pointer(ruleset), ctypes.c_void_p), size, 0)
    try:
        for paths, rights in ((read, _READ), (write, _WRITE), (devices, _DEVICE)):
            for path in paths:
                _allow(rules, path, rights & files)
        call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return version


def _allow(rules: int, path: Path, rights: int) -> None:
    with contextlib.suppress(OSError):  # nothing there, or nothing for us
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _OF_A_FILE
            rule = _PathBeneath(rights, descriptor)
            with contextlib.suppress(KernelRefused):  # a file system that cannot be restricted stays closed
                pointer = ctypes.cast(ctypes.pointer(rule), ctypes.c_void_p)
                call(_ADD_RULE, rules, _RULE_PATH_BENEATH, pointer, 0)
        finally:
            os.close(descriptor)


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
_DRIVERS = tuple(
    map(
        Path,
        (
            *("/etc/nvidia", "/etc/vulkan", "/etc/OpenCL"),
            *("/opt/rocm", "/usr/local/cuda", "/usr/local/nvidia"),
        ),
    )
)
_GPUS = ("dri", "dxg", "kfd", "nvidia*")
"""Under /dev: Mesa and other kernel drivers, WSL, AMD, NVIDIA."""
_THREADS = Path("/proc/self/task")


class Confinement(NamedTuple):
    holds: tuple[str, ...]
    lacks: tuple[str, ...]

    def __str__(self) -> str:
        lacking = f" (without {'; '.join(self.lacks)})" if self.lacks else ""
        return f"{', '.join(self.holds) or 'none'}{lacking}"


def confine(
    *, read: Iterable[Path] = (), write: Iterable[Path] = (), computes_on_gpu: bool = False
) -> Confinement:
    """Restrict this process to these paths, Python and the system's libraries, while there is one thread.
    `computes_on_gpu`: GPUs and their drivers too."""
    if sys.platform != "linux":
        return Confinement((), (f"landlock and seccomp: {sys.platform} has none",))

    def restricted_files() -> str:
        drivers = driver_files() if computes_on_gpu else []
        gpus = [path for pattern in _GPUS for path in Path("/dev").glob(pattern)] if computes_on_gpu else []
        sinks = [*_SINKS, _THREADS] if computes_on_gpu else _SINKS  # CUDA names its threads, or gives up
        version = restrict_files([*_SYSTEM, *_code(), *drivers, *read], [*sinks, *write], gpus)
        # Landlock does not restrict threads that a library has already started.
        others = sum(1 for _ in _THREADS.iterdir()) - 1
        return f"v{version} but for {others} threads" if others else f"v{version}"

    holds, lacks = [], []
    for what, restrict in (
        ("no new privileges", give_up_new_privileges),
        ("few capabilities", give_up_capabilities),
        ("landlock", restricted_files),
        ("seccomp", lambda: restrict_calls(allows_cuda=computes_on_gpu)),
    ):
        try:
            holds.append(f"{what} {restrict() or ''}".rstrip())
        except KernelRefused as error:
            lacks.append(f"{what}: {error}")
    return Confinement(tuple(holds), tuple(lacks))


def driver_files() -> list[Path]:
    return [*_DRIVERS, *_named_drivers()]


def _named_drivers() -> Iterator[Path]:
    """The linker finds libraries whose names have no slash."""
    for path in driver_manifests():
        yield path
        for manifest in path.glob("*.json") if path.is_dir() else [path]:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                library = json.loads(manifest.read_bytes())["ICD"]["library_path"]
                if "/" in library:
                    yield manifest.parent / library


def _code() -> list[Path]:
    """The working directory and a checkout may contain anything, and are left out."""
    anything = {_PACKAGE.parent, Path()}
    with contextlib.suppress(OSError):  # it may be gone
        anything.add(Path.cwd())
    searched = [path for path in map(Path, sys.path) if path not in anything]
    installed = (sys.prefix, sys.base_prefix, *site.getsitepackages(), *library_folders())
    return [_PACKAGE, *searched, *map(Path, installed)]
