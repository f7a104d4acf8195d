"""Attempts of a confined process. Each attempt has a process of its own, because confinement is final."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.child_processes.test_gpu_drivers import manifest
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="landlock and seccomp are Linux's")

_BEGIN = """
import ctypes, os, signal, socket, subprocess, sys, threading
from pathlib import Path
from openai_cpu_server.child_processes.confine import confine

readable, writable, outside = map(Path, sys.argv[1:4])
before = threading.Thread(target=threading.Event().wait, daemon=True)
mine, peer = socket.socketpair()
libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


"""


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Return a readable folder, a writable one and another."""
    folders = [tmp_path / name for name in ("readable", "writable", "outside")]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("secret")
    return [*map(str, folders)]


def run_script(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def run_confined(folders: list[str], attempt: str, begin: str = "") -> str:
    """Return the output of an attempt in a confined process, or the name of its exception."""
    script = (
        f"{_BEGIN}{begin}\nreport = confine(read=[readable], write=[writable])\n"
        f"try:\n    {attempt}\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    return run_script(script, *folders)


def exceptions_of(
    folders: list[str], attempts: Sequence[str], options: str = "read=[readable], write=[writable]"
) -> dict[str, str]:
    """Return the name of the exception of each attempt in one confined process, or "" without one."""
    loop = (
        "names = {}\n"
        "for attempt in json.loads(sys.argv[4]):\n"
        "    try:\n        exec(attempt)\n        names[attempt] = ''\n"
        "    except Exception as error:\n        names[attempt] = type(error).__name__\n"
        "print(json.dumps(names))"
    )
    script = f"import json\n{_BEGIN}\nconfine({options})\n{loop}"
    last_line = run_script(script, *folders, json.dumps(attempts)).splitlines()[-1]
    exceptions: dict[str, str] = json.loads(last_line)
    return exceptions


@pytest.fixture(scope="module")
def report() -> str:
    return run_confined([".", ".", "."], "print(report)")


@pytest.fixture
def landlock(report: str) -> None:
    if "landlock v" not in report:
        pytest.skip(report)


@pytest.fixture
def seccomp(report: str) -> None:
    if "seccomp" not in report.partition("(")[0]:
        pytest.skip(report)


def test_the_restrictions_are_reported_in_one_line(report: str) -> None:
    assert "no new privileges" in report
    assert all(name in report for name in ("landlock", "seccomp", "capabilities"))
    assert len(report.splitlines()) == 1


OUTSIDE = [
    "(outside / 'file').read_text()",
    "(outside / 'file').write_text('x')",
    "(outside / 'new').write_text('x')",
    "(outside / 'file').unlink()",
    "os.listdir(outside)",
    "(readable / 'file').write_text('x')",
    "(readable / 'new').touch()",
    "(readable / 'file').unlink()",
    "os.truncate(readable / 'file', 0)",
    "os.mkfifo(writable / 'pipe')",
    "(writable / 'link').symlink_to(outside / 'file')",
    "os.rename(outside / 'file', writable / 'file')",
    "os.link(outside / 'file', writable / 'new')",
    "Path('/etc/passwd').read_text()",
    "os.listdir(Path.home())",
    "os.listdir('.')",
    "os.listdir('/')",
    "Path(f'/proc/{os.getppid()}/environ').read_bytes()",
    "os.readlink(f'/proc/{os.getppid()}/fd/0')",
    "Path(f'/proc/{os.getppid()}/root/etc/passwd').read_bytes()",
    "Path('/proc/self/root/etc/passwd').read_bytes()",
    "Path('/proc/sys/kernel/core_pattern').write_text('x')",
    "open('/dev/tty')",
    "Path('/tmp/x-of-a-sandbox').touch()",
]


@pytest.mark.usefixtures("landlock")
def test_files_outside_are_closed(folders: list[str]) -> None:
    exceptions = exceptions_of(folders, OUTSIDE)
    refusals = {"PermissionError", "OSError"}  # OSError for a link across folders
    assert set(exceptions.values()) <= refusals, exceptions
    assert (Path(folders[2]) / "file").read_text() == "secret"
    assert (Path(folders[0]) / "file").read_text() == "secret"


@pytest.mark.usefixtures("landlock")
def test_a_file_behind_a_link_is_closed(folders: list[str]) -> None:
    (Path(folders[0]) / "link").symlink_to(Path(folders[2]) / "file")
    assert run_confined(folders, "(readable / 'link').read_text()") == "PermissionError"


@pytest.mark.usefixtures("landlock")
def test_a_later_file_is_open_in_a_readable_folder(folders: list[str]) -> None:
    later = "os.mkdir(readable / 'a'); (readable / 'a' / 'b').write_text('x'); later = readable / 'a' / 'b'"
    assert run_confined(folders, "print(later.read_text())", later) == "x"


NEEDED = [
    "(readable / 'file').read_text()",
    "os.listdir(readable)",
    "(writable / 'new').write_text('x'); (writable / 'new').rename(writable / 'b')",
    "os.mkdir(writable / 'c'); (writable / 'c' / 'd').touch(); os.unlink(writable / 'file')",
    "import colorsys, decimal, sqlite3",
    "import zoneinfo; zoneinfo.ZoneInfo('UTC')",
    "ctypes.CDLL('libm.so.6')",
    "os.sched_getaffinity(0)",
    "Path('/proc/meminfo').read_text(), Path('/proc/self/status').read_text()",
    "os.urandom(1), open('/dev/urandom', 'rb').read(1), open('/dev/null', 'w')",
    "import psutil; psutil.cpu_times(); psutil.virtual_memory(); psutil.Process().memory_info()",
    "import psutil; psutil.cpu_count(logical=False)",
    "mine.sendall(b'x'); peer.recv(1)",
    "before.start(); threading.Thread(target=print).start()",
    "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)",
    "os.kill(os.getpid(), 0)",
    "libc.prctl(1, 18, 0, 0, 0)",
    # arch_prctl: permission to use AMX, unknown to older systems
    "assert os.uname().machine != 'x86_64' or libc.syscall(158, 0x1023, 18) == 0 or ctypes.get_errno() != 1",
]


def test_calls_that_an_engine_needs_are_permitted(folders: list[str]) -> None:
    assert exceptions_of(folders, NEEDED) == dict.fromkeys(NEEDED, "")


REACHING_OUT = [
    "socket.socket()",
    "socket.socket(socket.AF_UNIX)",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "socket.create_connection(('127.0.0.1', 9))",
    "mine.connect('/nowhere')",
    "mine.bind('/nowhere')",
    "mine.listen()",
    "mine.accept()",
    "subprocess.run(['/bin/true'])",
    "os.execv('/bin/true', ['true'])",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "call(425, 4, None)",
    "os.kill(os.getppid(), 0)",
    "os.kill(0, 0)",
    "os.kill(-1, 0)",
    "call(272 if os.uname().machine == 'x86_64' else 97, 0x10000000)",
    "os.chroot('/')",
    "socket.sethostname('x')",
    "os.pidfd_open(os.getppid())",
    "import fcntl, termios; fcntl.ioctl(mine, termios.TIOCSTI, b'x')",
    "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))",
    "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "call(438, 3, 0, 0)",
]


@pytest.mark.usefixtures("seccomp")
def test_calls_that_reach_out_are_refused(folders: list[str]) -> None:
    assert exceptions_of(folders, REACHING_OUT) == dict.fromkeys(REACHING_OUT, "PermissionError")


@pytest.mark.usefixtures("seccomp")
def test_earlier_threads_are_confined_too(folders: list[str]) -> None:
    begin = (
        "go, names = threading.Event(), []\n"
        "def attempt():\n"
        "    go.wait()\n"
        "    try:\n        socket.socket()\n"
        "    except OSError as error:\n        names.append(type(error).__name__)\n"
        "earlier = threading.Thread(target=attempt)\nearlier.start()\n"
    )
    assert run_confined(folders, "go.set(); earlier.join(); print(*names)", begin) == "PermissionError"


@pytest.mark.usefixtures("landlock")
def test_the_report_counts_threads_that_landlock_does_not_confine(folders: list[str]) -> None:
    assert " but for 1 threads" in run_confined(folders, "print(report)", "before.start()")


def test_absent_paths_and_a_lost_working_directory_are_accepted(folders: list[str]) -> None:
    begin = "os.chdir(writable); (writable / 'file').unlink(); writable.rmdir(); readable = Path('/absent')"
    assert "privileges" in run_confined(folders, "print(report)", begin)


def test_a_confined_process_can_abort_as_native_code_does(folders: list[str]) -> None:
    script = f"{_BEGIN}confine()\nlibc.abort()"
    run = subprocess.run([sys.executable, "-c", script, *folders], capture_output=True, check=False)
    assert run.returncode == -6


@pytest.mark.usefixtures("landlock")
def test_users_other_than_root_are_confined_the_same_way(folders: list[str]) -> None:
    """The attempt drops root where the tests have it, as in containers."""
    begin = "os.getuid() or os.setgroups([]) or os.setgid(65534) or os.setuid(65534)"
    assert run_confined(folders, "print(report)", begin) == run_confined(folders, "print(report)")


SEQUENCED = "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)"
BEGINS = [
    f"server = {SEQUENCED}; server.bind(chr(0) + str(outside)); server.listen()",
    "Path(f'/proc/self/task/{threading.get_native_id()}/comm').write_text('x')",
]
"""Calls without which cuInit fails on an H200."""
REACHES = [
    f"{SEQUENCED}.connect(str(outside / 'listens'))",
    f"{SEQUENCED}.bind(str(outside / 'new'))",
    "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', str(outside / 'listens'))",
    "socket.socket(socket.AF_INET)",
]


@pytest.mark.usefixtures("landlock", "seccomp")
@pytest.mark.parametrize(("is_on_gpu", "begins"), [(True, ""), (False, "PermissionError")])
def test_cuda_can_start_but_reaches_no_process(folders: list[str], is_on_gpu: bool, begins: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"{folders[2]}/listens")
        listening.listen()
        exceptions = exceptions_of(folders, [*BEGINS, *REACHES], f"computes_on_gpu={is_on_gpu}")
    assert exceptions == {**dict.fromkeys(BEGINS, begins), **dict.fromkeys(REACHES, "PermissionError")}


@pytest.mark.usefixtures("landlock")
@pytest.mark.parametrize(("is_on_gpu", "exception"), [(True, ""), (False, "PermissionError")])
def test_drivers_are_readable_for_an_engine_on_the_gpu(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, is_on_gpu: bool, exception: str
) -> None:
    library = Path(folders[2], "lib.so")
    library.write_text("a library")
    named = manifest(Path(folders[2], "named"), "../lib.so")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(named))
    reads = [f"assert {path.read_text()!r} == Path({str(path)!r}).read_text()" for path in (library, named)]
    assert exceptions_of(folders, reads, f"computes_on_gpu={is_on_gpu}") == dict.fromkeys(reads, exception)


_NODE = """
from pathlib import Path
from openai_cpu_server.child_processes.kernel import settle_on_node

settle_on_node({node})
block = bytearray(2**25)
maps = Path("/proc/self/numa_maps")
print(maps.read_text().count(" prefer") if maps.exists() else -1)
"""


@pytest.mark.parametrize(("node", "is_there"), [(0, True), (63, False)])
def test_memory_of_a_node_is_preferred_or_the_reason_is_logged(node: int, *, is_there: bool) -> None:
    program = [sys.executable, "-c", _NODE.format(node=node)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    if not is_there or done.stderr:  # in many containers it is not permitted
        assert done.stderr.startswith(f"memory is not asked for on NUMA node {node}: ")
    else:
        assert int(done.stdout) != 0
