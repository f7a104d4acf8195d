"""Calls of the kernel for which Python has no function."""

from __future__ import annotations

import ctypes
import errno
import os

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_FILES_OF_ALL = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH. The higher half of the sets, which stays empty, has neither."""
_IN_WORDS = {
    errno.ENOSYS: "the kernel has none",
    errno.EINVAL: "the kernel has none",
    errno.EOPNOTSUPP: "the kernel was started without it",
    errno.EPERM: "it is not permitted here",
}


class KernelRefused(Exception):
    """The kernel does not do it; the message is a clause."""


def call(number: int, *arguments: int | ctypes.c_void_p | None) -> int:
    """A system call by its number. Raises `KernelRefused`."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise _refusal()
    return result


def give_up_new_privileges() -> None:
    """From now on no program that this process starts gets more rights than it has: without that, only root
    may restrict itself. Raises `KernelRefused`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _refusal()


def give_up_capabilities() -> None:
    """Of what root may do, files of all users stay open, for models may be another's; landlock says which.

    Without it, root reads the environment of every process under /proc, landlock or not. Raises
    `KernelRefused`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) != 0:
        raise _refusal()
    kept = [sets[0] & _FILES_OF_ALL, sets[1] & _FILES_OF_ALL, 0, 0, 0, 0]
    if kept != [*sets] and libc.capset(header, (ctypes.c_uint32 * 6)(*kept)) != 0:
        raise _refusal()


def _refusal() -> KernelRefused:
    number = ctypes.get_errno()
    return KernelRefused(_IN_WORDS.get(number, os.strerror(number)))
