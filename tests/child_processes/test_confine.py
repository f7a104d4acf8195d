"""A confined process tries what it may not do. Each attempt is a process of its own: there is no way back."""

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

kept, written, outside = map(Path, sys.argv[1:4])
before = threading.Thread(target=threading.Event().wait, daemon=True)
mine, peer = socket.socketpair()
libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


"""


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """One to read, one to write in, and another."""
    folders = [tmp_path / name for name in ("kept", "written", "outside")]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("secret")
    return [*map(str, folders)]


def printed(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def confined(folders: list[str], attempt: str, begin: str = "") -> str:
    """What the attempt printed, after it was confined, or the name of what it raised."""
    script = (
        f"{_BEGIN}{begin}\nheld = confine(read=[kept], write=[written])\n"
        f"try:\n    {attempt}\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    return printed(script, *folders)


def refused_each(
    folders: list[str], attempts: Sequence[str], options: str = "read=[kept], write=[written]"
) -> dict[str, str]:
    """What each attempt raised in one confined process, by the attempt; "" where it was let through."""
    loop = (
        "said = {}\n"
        "for attempt in json.loads(sys.argv[4]):\n"
        "    try:\n        exec(attempt)\n        said[attempt] = ''\n"
        "    except Exception as error:\n        said[attempt] = type(error).__name__\n"
        "print(json.dumps(said))"
    )
    script = f"import json\n{_BEGIN}\nconfine({options})\n{loop}"
    last_line = printed(script, *folders, json.dumps(attempts)).splitlines()[-1]
    found: dict[str, str] = json.loads(last_line)
    return found


@pytest.fixture(scope="module")
def holds() -> str:
    return confined([".", ".", "."], "print(held)")


@pytest.fixture
def landlock(holds: str) -> None:
    if "landlock v" not in holds:
        pytest.skip(holds)


@pytest.fixture
def seccomp(holds: str) -> None:
    if "seccomp" not in holds.partition("(")[0]:
        pytest.skip(holds)


def test_it_says_what_holds_in_one_line(holds: str) -> None:
    assert "no new privileges" in holds
    assert all(name in holds for name in ("landlock", "seccomp", "capabilities"))
    assert len(holds.splitlines()) == 1


OUTSIDE = [
    "(outside / 'file').read_text()",
    "(outside / 'file').write_text('x')",
    "(outside / 'new').write_text('x')",
    "(outside / 'file').unlink()",
    "os.listdir(outside)",
    "(kept / 'file').write_text('x')",
    "(kept / 'new').touch()",
    "(kept / 'file').unlink()",
    "os.truncate(kept / 'file', 0)",
    "os.mkfifo(written / 'pipe')",
    "(written / 'link').symlink_to(outside / 'file')",
    "os.rename(outside / 'file', written / 'file')",
    "os.link(outside / 'file', written / 'new')",
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
    said = refused_each(folders, OUTSIDE)
    refused = ("PermissionError", "OSError")  # the latter: a link across folders
    assert {attempt: how for attempt, how in said.items() if how not in refused} == {}
    assert (Path(folders[2]) / "file").read_text() == "secret"
    assert (Path(folders[0]) / "file").read_text() == "secret"


@pytest.mark.usefixtures("landlock")
def test_a_way_in_by_a_link_is_closed(folders: list[str]) -> None:
    (Path(folders[0]) / "link").symlink_to(Path(folders[2]) / "file")
    assert confined(folders, "(kept / 'link').read_text()") == "PermissionError"


@pytest.mark.usefixtures("landlock")
def test_a_file_that_came_later_is_open_in_a_kept_folder_only(folders: list[str]) -> None:
    later = "os.mkdir(kept / 'a'); (kept / 'a' / 'b').write_text('x'); later = kept / 'a' / 'b'"
    assert confined(folders, "print(later.read_text())", later) == "x"


NEEDED = [
    "(kept / 'file').read_text()",
    "os.listdir(kept)",
    "(written / 'new').write_text('x'); (written / 'new').rename(written / 'b')",
    "os.mkdir(written / 'c'); (written / 'c' / 'd').touch(); os.unlink(written / 'file')",
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


def test_what_an_engine_needs_goes_on(folders: list[str]) -> None:
    assert refused_each(folders, NEEDED) == dict.fromkeys(NEEDED, "")


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
    assert refused_each(folders, REACHING_OUT) == dict.fromkeys(REACHING_OUT, "PermissionError")


@pytest.mark.usefixtures("seccomp")
def test_threads_of_before_are_held_too(folders: list[str]) -> None:
    begin = (
        "go, said = threading.Event(), []\n"
        "def attempt():\n"
        "    go.wait()\n"
        "    try:\n        socket.socket()\n"
        "    except OSError as error:\n        said.append(type(error).__name__)\n"
        "earlier = threading.Thread(target=attempt)\nearlier.start()\n"
    )
    assert confined(folders, "go.set(); earlier.join(); print(*said)", begin) == "PermissionError"


def test_the_line_tells_of_threads_that_landlock_does_not_hold(folders: list[str], holds: str) -> None:
    if "landlock v" not in holds:
        pytest.skip(holds)
    assert " but for 1 threads" in confined(folders, "print(held)", "before.start()")


def test_paths_that_are_not_there_and_a_lost_working_directory(folders: list[str]) -> None:
    begin = "os.chdir(written); (written / 'file').unlink(); written.rmdir(); kept = Path('/no/such/place')"
    assert "privileges" in confined(folders, "print(held)", begin)


def test_it_can_end_itself_as_native_code_does(folders: list[str]) -> None:
    script = f"{_BEGIN}confine()\nlibc.abort()"
    run = subprocess.run([sys.executable, "-c", script, *folders], capture_output=True, check=False)
    assert run.returncode == -6


@pytest.mark.usefixtures("landlock")
def test_another_user_than_root_may_do_it(folders: list[str]) -> None:
    """Where the tests run as root, as they do in containers."""
    begin = "os.getuid() or os.setgroups([]) or os.setgid(65534) or os.setuid(65534)"
    assert confined(folders, "print(held)", begin) == confined(folders, "print(held)")


SEQUENCED = "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)"
BEGINS = [
    f"begun = {SEQUENCED}; begun.bind(chr(0) + str(outside)); begun.listen()",
    "Path(f'/proc/self/task/{threading.get_native_id()}/comm').write_text('x')",
]
"""On an H200 cuInit fails without either."""
REACHES = [
    f"{SEQUENCED}.connect(str(outside / 'listens'))",
    f"{SEQUENCED}.bind(str(outside / 'new'))",
    "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', str(outside / 'listens'))",
    "socket.socket(socket.AF_INET)",
]


@pytest.mark.usefixtures("landlock", "seccomp")
@pytest.mark.parametrize(("is_on_gpu", "begins"), [(True, ""), (False, "PermissionError")])
def test_cuda_can_begin_and_reaches_nobody(folders: list[str], is_on_gpu: bool, begins: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"{folders[2]}/listens")
        listening.listen()
        said = refused_each(folders, [*BEGINS, *REACHES], f"computes_on_gpu={is_on_gpu}")
    assert said == {**dict.fromkeys(BEGINS, begins), **dict.fromkeys(REACHES, "PermissionError")}


@pytest.mark.usefixtures("landlock")
@pytest.mark.parametrize(("is_on_gpu", "said"), [(True, ""), (False, "PermissionError")])
def test_drivers_are_open_for_who_computes_there(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, is_on_gpu: bool, said: str
) -> None:
    library = Path(folders[2], "lib.so")
    library.write_text("a library")
    named = manifest(Path(folders[2], "named"), "../lib.so")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(named))
    reads = [f"assert {path.read_text()!r} == Path({str(path)!r}).read_text()" for path in (library, named)]
    assert refused_each(folders, reads, f"computes_on_gpu={is_on_gpu}") == dict.fromkeys(reads, said)


_NODE = """
from pathlib import Path
from openai_cpu_server.child_processes.kernel import settle_on_node

settle_on_node({node})
kept = bytearray(2**25)
maps = Path("/proc/self/numa_maps")
print(maps.read_text().count(" prefer") if maps.exists() else -1)
"""


@pytest.mark.parametrize(("node", "is_there"), [(0, True), (63, False)])
def test_memory_of_a_node_is_preferred_or_a_word_says_why_not(node: int, *, is_there: bool) -> None:
    program = [sys.executable, "-c", _NODE.format(node=node)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    if not is_there or done.stderr:  # in many containers it is not permitted
        assert done.stderr.startswith(f"memory is not asked for on NUMA node {node}: ")
    else:
        assert int(done.stdout) != 0
