"""System calls without a Python function, and the seccomp filter of child processes. It lists forbidden
calls, because an allow list would have to follow each libc, Python and ggml (seccomp(2),
`linux/bpf_common.h`)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_FILES_OF_ALL = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, in the lower half."""
_IN_WORDS = {
    errno.ENOSYS: "the kernel has none",
    errno.EINVAL: "the kernel has none",
    errno.EOPNOTSUPP: "the kernel was started without it",
    errno.EPERM: "it is not permitted here",
}


class KernelRefused(Exception):
    """The message is a clause."""


def call(number: int, *arguments: int | ctypes.c_void_p | None) -> int:
    """Make a system call. Raises `KernelRefused`."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise _refusal()
    return result


_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED = 1


def settle_on_node(node: int) -> None:
    """Prefer this NUMA node's memory, or write to stderr, as in many containers. Binding would get the
    process killed when the node is full."""
    num_bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (node // num_bits + 1))()
    words[node // num_bits] = 1 << node % num_bits
    try:
        if (number := _SET_MEMPOLICY.get(platform.machine())) is None:
            raise KernelRefused(f"the number of the call is not known for {platform.machine()}")
        call(number, _PREFERRED, ctypes.cast(words, ctypes.c_void_p), num_bits * len(words) + 1)
    except KernelRefused as error:
        sys.stderr.write(f"memory is not asked for on NUMA node {node}: {error}\n")


def give_up_new_privileges() -> None:
    """Set no_new_privs, without which only root may restrict itself. Raises `KernelRefused`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _refusal()


def give_up_capabilities() -> None:
    """Drop root's capabilities except file access, because models may belong to others. Root could otherwise
    read every process's environment under /proc despite landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) != 0:
        raise _refusal()
    staying = [sets[0] & _FILES_OF_ALL, sets[1] & _FILES_OF_ALL, 0, 0, 0, 0]
    if staying != [*sets] and libc.capset(header, (ctypes.c_uint32 * 6)(*staying)) != 0:
        raise _refusal()


def _refusal() -> KernelRefused:
    number = ctypes.get_errno()
    return KernelRefused(_IN_WORDS.get(number, os.strerror(number)))


class _Machine(NamedTuple):
    arch: int
    """AUDIT_ARCH_..., which a filter must check because call numbers differ."""
    seccomp: int
    column: int


_MACHINES = {"x86_64": _Machine(0xC000003E, 317, 0), "aarch64": _Machine(0xC00000B7, 277, 1)}
_X32 = 0x40000000
"""First call number of x86_64's second set."""
_NONE = -1

_FORBIDDEN = {
    # Sockets: it has its own since the start.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Programs.
    "execve": (59, 221),
    "execveat": (322, 281),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # File systems and name spaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "fanotify_init": (300, 262),
    # Parts of the kernel that many ways to more rights have led through.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "modify_ldt": (154, _NONE),
    "iopl": (172, _NONE),
    "ioperm": (173, _NONE),
    # The machine.
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
}
"""System call -> its number on x86_64 and on aarch64."""
_OF_CUDA = ("socket", "bind", "listen")
"""CUDA finds no device without an abstract Unix socket, which it never connects."""
_CLONE3 = 435
_CLONE, _IOCTL, _PRLIMIT = (56, 220), (16, 29), (302, 261)
_SIGNALS = ((62, 129), (234, 131))
"""`kill` and `tgkill`, which a process may still send to itself, as `abort` does."""
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW... flags that `clone` accepts."""
_TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into the server's terminal."""

_LOAD, _IS, _HAS_ANY, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW = 0x7FFF0000
_FORBID = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""

_SET_MODE_FILTER = 1
_ALL_THREADS, _KEEP_SPEED = 1 << 0, 1 << 2
"""Kernels before 5.16 disable a branch prediction unless the second flag is set, which slows down steps."""


class _Step(NamedTuple):
    code: int
    value: int
    if_so: int = 0
    if_not: int = 0


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def restrict_calls(*, allows_cuda: bool = False) -> None:
    """Forbid system calls for all threads (EPERM). Raises `KernelRefused`."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8:
        raise KernelRefused(f"there is no filter for {platform.machine()}")
    steps = b"".join(
        struct.pack("=HBBI", step.code, step.if_so, step.if_not, step.value)
        for step in _filter(machine, allows_cuda)
    )
    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = _Program(len(steps) // 8, ctypes.addressof(buffer))
    pointer = ctypes.cast(ctypes.pointer(program), ctypes.c_void_p)
    if call(machine.seccomp, _SET_MODE_FILTER, _ALL_THREADS | _KEEP_SPEED, pointer) != 0:
        raise KernelRefused("another thread has a filter of its own")


def _filter(machine: _Machine, allows_cuda: bool) -> Iterator[_Step]:
    at = machine.column
    forbidden = _FORBIDDEN.keys() - (_OF_CUDA if allows_cuda else ())
    yield _Step(_LOAD, _ARCH)
    yield from (_Step(_IS, machine.arch, if_so=1), _Step(_RETURN, _FORBID))
    yield _Step(_LOAD, _NUMBER)
    yield from (_Step(_AT_LEAST, _X32, if_not=1), _Step(_RETURN, _FORBID))
    if allows_cuda:
        # This kind sends nothing without a connection, but a datagram reaches any path.
        kind = socket.SOCK_SEQPACKET
        yield from _where(
            _FORBIDDEN["socket"][at],
            0,
            *(_Step(_IS, socket.AF_UNIX, if_so=1), _Step(_RETURN, _FORBID), _Step(_LOAD, _ARGUMENTS + 8)),
            *(_Step(_IS, kind | socket.SOCK_CLOEXEC, if_so=2), _Step(_IS, kind, if_so=1)),
            _Step(_RETURN, _FORBID),
        )
    for number in sorted(_FORBIDDEN[name][at] for name in forbidden):
        if number != _NONE:
            yield from (_Step(_IS, number, if_not=1), _Step(_RETURN, _FORBID))
    yield from (_Step(_IS, _CLONE3, if_not=1), _Step(_RETURN, _UNKNOWN))  # libc then takes clone
    yield from _where(_CLONE[at], 0, _Step(_HAS_ANY, _NEW_NAMESPACES, if_not=1), _Step(_RETURN, _FORBID))
    yield from _where(
        _IOCTL[at],
        1,
        *(_Step(_IS, _TYPING[0], if_so=1), _Step(_IS, _TYPING[1], if_not=1), _Step(_RETURN, _FORBID)),
    )
    itself = os.getpid()
    for numbers in _SIGNALS:
        yield from _where(numbers[at], 0, _Step(_IS, itself, if_so=1), _Step(_RETURN, _FORBID))
    yield from _where(
        _PRLIMIT[at], 0, *(_Step(_IS, 0, if_so=2), _Step(_IS, itself, if_so=1), _Step(_RETURN, _FORBID))
    )
    yield _Step(_RETURN, _ALLOW)


def _where(number: int, argument: int, *steps: _Step) -> Iterator[_Step]:
    """Both architectures have the lower half of an argument first."""
    yield _Step(_IS, number, if_not=len(steps) + 2)
    yield _Step(_LOAD, _ARGUMENTS + 8 * argument)
    yield from steps
    yield _Step(_RETURN, _ALLOW)
