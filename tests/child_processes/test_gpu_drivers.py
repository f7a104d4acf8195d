"""The sandbox of a process with a device: it opens the drivers that Vulkan is told of, and CUDA can begin."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openai_cpu_server.child_processes.confine import driver_files

_OPENS = """
import sys
from pathlib import Path
from openai_cpu_server.child_processes.confine import confine

print(confine(computes_on_gpu=sys.argv[1] == "gpu"))
for path in sys.argv[2:]:
    try:
        print(Path(path).read_bytes().decode())
    except OSError as error:
        print(type(error).__name__)
"""

_BEGINS = """
import socket, sys, threading
from pathlib import Path
from openai_cpu_server.child_processes.confine import confine

def tell(what, act):
    try:
        act()
        print(what, "works")
    except OSError as error:
        print(what, type(error).__name__)

def begin():
    with made() as one:
        one.bind(chr(0) + sys.argv[2])
        one.listen()

def made():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

def reach(path):
    with made() as one:
        one.connect(path)

print(confine(computes_on_gpu=sys.argv[1] == "gpu"))
tell("a socket", begin)
name = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
tell("the name of a thread", lambda: name.write_text("x"))
tell("a connection", lambda: reach(sys.argv[3]))
tell("a socket in a folder", lambda: made().bind(sys.argv[3] + "2"))
tell("a datagram", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", sys.argv[3]))
tell("the network", lambda: socket.socket(socket.AF_INET))
"""


def manifest(folder: Path, library: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "icd.json"
    path.write_text(json.dumps({"ICD": {"library_path": library, "api_version": "1.4.0"}}))
    return path


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"])
def test_manifests_and_their_libraries(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = manifest(tmp_path / "one", "./lib.so")
    elsewhere = manifest(tmp_path / "two", str(tmp_path / "three/lib.so"))
    monkeypatch.setenv(variable, os.pathsep.join(map(str, (beside, elsewhere.parent, tmp_path / "absent"))))
    found = driver_files()
    assert {beside, tmp_path / "one/lib.so", elsewhere.parent, tmp_path / "three/lib.so"} <= set(found)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"ICD": 1}', '{"ICD": {"library_path": 1}}', '{"ICD": {"library_path": "lib.so"}}'],
)
def test_a_manifest_that_names_no_file_is_itself_all_there_is(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "icd.json"
    path.write_text(text)
    before = driver_files()
    monkeypatch.setenv("VK_DRIVER_FILES", str(path))
    assert driver_files() == [*before, path]


@pytest.mark.skipif(sys.platform != "linux", reason="landlock is Linux's")
@pytest.mark.parametrize(("computes_on", "opens"), [("gpu", True), ("cpu", False)])
def test_the_sandbox_opens_them_for_who_computes_there(
    computes_on: str, opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib.so"
    library.write_text("a library")
    named = manifest(tmp_path / "named", "../lib.so")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(named))
    command = [sys.executable, "-c", _OPENS, computes_on, str(library), str(named)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    held, *read = run.stdout.splitlines()
    if "landlock v" not in held:
        pytest.skip(held)
    assert read == (["a library", named.read_text()] if opens else ["PermissionError"] * 2)


@pytest.mark.skipif(sys.platform != "linux", reason="landlock is Linux's")
@pytest.mark.parametrize(("computes_on", "begins"), [("gpu", "works"), ("cpu", "PermissionError")])
def test_cuda_can_begin_and_reaches_nobody(computes_on: str, begins: str, tmp_path: Path) -> None:
    """On an H200 cuInit fails without either of the first two."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        command = [sys.executable, "-c", _BEGINS, computes_on, str(tmp_path), str(path)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    held, *told = run.stdout.splitlines()
    if "landlock v" not in held or "seccomp" not in held.partition("without")[0]:
        pytest.skip(held)
    assert told == [
        f"a socket {begins}",
        f"the name of a thread {begins}",
        "a connection PermissionError",
        "a socket in a folder PermissionError",
        "a datagram PermissionError",
        "the network PermissionError",
    ]
