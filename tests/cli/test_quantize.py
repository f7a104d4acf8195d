"""`openai-cpu-server quantize` as a process, on real files."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import psutil
import pytest
from inline_snapshot import snapshot

from openai_cpu_server.cli.quantize import OutputFiles
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import (
    FILE_TYPES,
    FileType,
    GgufHeader,
    file_type_name,
    file_type_named,
    is_copy,
)
from openai_cpu_server.llama.gguf.quantize import QuantizeOptions, plan
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.model.model import Model
from tests.cli.in_process import Run, runner
from tests.llama.odd_models import gemma3, split, written
from tests.terminal import seen_on_a_terminal
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

COMMAND = (sys.executable, "-m", "openai_cpu_server")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process; its worker is a child process."""
    return runner("quantize", capsys, monkeypatch)


@pytest.fixture
def quantize(run: Run) -> Run:
    return lambda *arguments: run(*arguments).good


def types(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.type.name for tensor in model_tensors(GgufHeader(path))}


def values(path: Path, name: str) -> np.ndarray:
    (tensor,) = [tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name]
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- results -------------------------------------------------------------------------------------------


def test_q4_k_m_is_the_usual_mixture(tiny: Path, tmp_path: Path, quantize: Run) -> None:
    out = tmp_path / "out.gguf"
    done = quantize(tiny, out, "--type", "q4_k_m")
    assert file_names(tmp_path) == ["out.gguf"]
    assert {**types(out), "token_embd.weight": ""} == {
        **types(tiny_model_path("q4_k_m")),
        "token_embd.weight": "",
    }
    assert file_type_name(GgufHeader(out).get_int("general.file_type") or 0) == "q4_k_m"
    with Model.open(GgufHeader(out), repack=False, on_progress=lambda fraction: None) as model:
        assert model.description == "llama 1.71M q4_k_m"
        description = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(model.handle, description, len(description))
        assert description.value.endswith(b"Q4_K - Medium")
    original = values(tiny, "blk.0.ffn_up.weight")
    error = values(out, "blk.0.ffn_up.weight") - original
    assert 0 < np.abs(error).mean() < 0.1 * np.abs(original).mean()
    assert re.sub(r"\d+\.\d s", "N s", done.stdout) == snapshot("""\
out.gguf: made in N s
                  before    after
size             6.85 MB  1.10 MB
bits per weight    32.00     5.04
tensors in f32        21        5
tensors in q6_K        -        3
tensors in q4_K        -       13
""")


def test_quantised_models_need_allow_requantize(tmp_path: Path, run: Run, quantize: Run) -> None:
    out = tmp_path / "demo.gguf"
    message = run("demo", out, "--type", "q4_k_m").refusal
    assert "is quantised already (q8_0)" in message
    assert "--allow-requantize" in message
    assert file_names(tmp_path) == []
    done = quantize("demo", out, "--type", "Q4_K", "--allow-requantize")
    assert Counter(types(out).values()) == {"q4_K": 44, "f32": 17, "q6_K": 5, "q5_0": 4, "q8_0": 4}
    assert done.stdout.splitlines()[-3:] == [
        "8 of 74 tensors could not have their intended type:",
        "  4 with rows of 704 values, not a multiple of 256 as for q6_K: q8_0",
        "  4 with rows of 704 values, not a multiple of 256 as for q4_K: q5_0",
    ]


def test_rows_that_blocks_do_not_divide_are_f16(tiny: Path, tmp_path: Path, quantize: Run) -> None:
    source, out = tiny_model_path(shape="tiny-mamba"), tmp_path / "out.gguf"
    done = quantize(source, out, "--type", "q4_0")
    assert types(out)["blk.0.ssm_dt.weight"] == "f16"
    assert "  4 with rows of 4 values, not a multiple of 32 as for q4_0: f16" in done.stdout
    with Model.open(GgufHeader(out), repack=False, on_progress=lambda fraction: None) as model:
        assert model.is_recurrent


def test_options_for_single_tensors(tiny: Path, tmp_path: Path, quantize: Run) -> None:
    pure, mixed = tmp_path / "pure.gguf", tmp_path / "mixed.gguf"
    quantize(tiny, pure, "--type", "q4_k_m", "--pure", "--leave-output-tensor")
    assert Counter(types(pure).values()) == {"q4_K": 15, "f32": 6}
    assert types(pure)["output.weight"] == "f32"
    chosen = ("--output-tensor-type", "bf16", "--token-embedding-type", "Q8_0")
    quantize(tiny, mixed, "--type", "q4_k_m", *chosen, "--tensor-type", r"blk\.0\..*=q5_1")
    found = types(mixed)
    assert (found["output.weight"], found["token_embd.weight"]) == ("bf16", "q8_0")
    assert {kind for name, kind in found.items() if "blk.0." in name} == {"q5_1", "f32"}
    assert "q5_1" not in {kind for name, kind in found.items() if "blk.1." in name}


def test_heads_stay_in_8_bits(tmp_path: Path, quantize: Run) -> None:
    heads, pure = tmp_path / "heads.gguf", tmp_path / "pure.gguf"
    source = tiny_model_path(shape="tiny-qwen35-head")
    quantize(source, heads, "--type", "q4_0", "--tensor-type", r"blk\.4\.ffn_up=q5_1")
    found = {name.removeprefix("blk.4."): kind for name, kind in types(heads).items() if "blk.4." in name}
    assert (found["nextn.eh_proj.weight"], found["attn_q.weight"], found["ffn_up.weight"]) == (
        "q8_0",
        "q8_0",
        "q5_1",
    )
    assert set(found.values()) == {"q8_0", "q5_1", "f32"}
    assert types(heads)["blk.3.ffn_up.weight"] == "q4_0"
    quantize(source, pure, "--type", "q4_0", "--pure")
    assert types(pure)["blk.4.nextn.eh_proj.weight"] == "q4_0"


def test_a_dry_run_writes_nothing_and_predicts_the_size(tiny: Path, tmp_path: Path, quantize: Run) -> None:
    out = tmp_path / "out.gguf"
    prediction = quantize(tiny, out, "--type", "q6_k", "--dry-run").stdout
    assert file_names(tmp_path) == []
    report = quantize(tiny, out, "--type", "q6_k").stdout
    assert prediction.splitlines() == ["out.gguf: would be made", *report.splitlines()[1:]]


def test_parts_stay_parts_or_become_one(tiny: Path, tmp_path: Path, run: Run, quantize: Run) -> None:
    first, *_ = split(tiny, tmp_path / "m.gguf", tensors_per_part=9)
    folder = tmp_path / "out"
    folder.mkdir()
    quantize(first, folder / "small.gguf", "--type", "q8_0", "--keep-split")
    assert file_names(folder) == [f"small-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    quantize(folder / "small-00001-of-00003.gguf", folder / "one.gguf", "--type", "copy")
    quantize(tiny, folder / "direct.gguf", "--type", "q8_0", "--keep-split")  # a single file stays single
    assert types(folder / "one.gguf") == types(folder / "direct.gguf")
    again = run(first, folder / "small.gguf", "--type", "q8_0", "--keep-split").refusal
    assert "small-00001-of-00003.gguf exists already" in again


@pytest.mark.parametrize("kind", FILE_TYPES.values(), ids=FILE_TYPES)
def test_every_type_of_the_list_is_possible(tiny: Path, kind: FileType) -> None:
    options = QuantizeOptions(file_type=kind.number, threads=1, is_copy=is_copy(kind), buffer_bytes=2**26)
    planned = plan(tiny, options)
    assert planned.needs_importance == kind.needs_importance
    targets = {tensor.target for tensor in planned.tensors}
    base = "q8_0" if kind.name == "mxfp4_moe" else kind.base  # the tiny model has no experts
    assert {base or "f32", "f32"} <= targets


def test_types_are_listed_and_named(quantize: Run) -> None:
    lines = quantize("--type", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(FILE_TYPES)
    (line,) = [line for line in lines if line.startswith("q4_k_m")]
    assert line.split(maxsplit=2)[1:] == ["4.50", "some tensors in more bits; the usual choice"]
    assert file_type_named("Q4_K_M") == file_type_named("q4_k") == FILE_TYPES["q4_k_m"]
    assert file_type_named("FP16").name == "f16"
    with pytest.raises(StartupError, match="unknown type 'fast': --type list"):
        file_type_named("fast")


# -- importance matrices -------------------------------------------------------------------------------


def importance(tiny: Path, path: Path, *, legacy: bool) -> Path:
    """Write a matrix in which all columns have the same weight, after 10 calls."""
    columns = {
        tensor.name: np.full(tensor.shape[0], 20.0, np.float32)
        for tensor in model_tensors(GgufHeader(tiny))
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2
    }
    if not legacy:
        return importance_file(path, columns)
    entries = [
        struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 10, len(sums)) + sums.tobytes()
        for name, sums in columns.items()
    ]
    path.write_bytes(struct.pack("<i", len(entries)) + b"".join(entries) + struct.pack("<ii", 5, 4) + b"text")
    return path


def importance_file(path: Path, columns: dict[str, np.ndarray], num_experts: int = 1) -> Path:
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_uint32("imatrix.chunk_count", 5)
    for name, sums in columns.items():
        writer.add_tensor(f"{name}.in_sum2", sums[np.newaxis])
        writer.add_tensor(f"{name}.counts", np.full((num_experts, 1), 10.0, np.float32))
    return written(writer, path)


# llama.cpp computes tables for iq2_xxs, which takes more than a second
@pytest.mark.parametrize("kind", ["q2_k_s", pytest.param("iq2_xxs", marks=pytest.mark.slow)])
def test_an_importance_matrix_makes_the_smallest_types(
    tiny: Path, tmp_path: Path, quantize: Run, kind: str
) -> None:
    most = r"blk\.(0\..*|1\.(attn_[qvo]|ffn).*)=f32"  # because the search for each block is slow
    for form in ("legacy", "gguf"):
        matrix = importance(tiny, tmp_path / f"{form}.imatrix", legacy=form == "legacy")
        quantize(tiny, tmp_path / f"{form}.gguf", "--type", kind, "--imatrix", matrix, "--tensor-type", most)
        header = GgufHeader(tmp_path / f"{form}.gguf")
        assert header.get_str("quantize.imatrix.file") == f"{form}.imatrix"
        assert header.get_int("quantize.imatrix.entries_count") == 14
        assert header.get_int("quantize.imatrix.chunks_count") == 5
        assert types(header.path)["blk.1.attn_k.weight"] == {"q2_k_s": "q2_K", "iq2_xxs": "iq2_xxs"}[kind]
    a, b = (values(tmp_path / f"{form}.gguf", "blk.1.attn_k.weight") for form in ("legacy", "gguf"))
    assert np.array_equal(a, b)


def test_wrong_importance_matrices(tiny: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "garbage.dat").write_bytes(b"\x05\0\0\0" + b"x" * 100)
    sums = {"blk.0.ffn_up.weight": np.ones(256, np.float32)}
    importance_file(tmp_path / "uneven.gguf", sums, num_experts=3)
    importance(tiny, tmp_path / "few.dat", legacy=True)
    for matrix, line in {
        "none.dat": "none.dat: No such file",
        "garbage.dat": "garbage.dat is not an importance matrix, or is damaged",
        str(tiny): "is not an importance matrix: it names no tensors",
        "uneven.gguf": "is damaged: it has 256 sums and 3 counts for blk.0.ffn_up.weight",
        "few.dat": "output.weight cannot be iq2_xxs without an importance matrix",
    }.items():
        options = ("--type", "iq2_xxs", "--imatrix", tmp_path / matrix, "--output-tensor-type", "iq2_xxs")
        assert line in run(tiny, tmp_path / "out.gguf", *options).refusal


# -- refusals ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good files and bad ones."""
    folder = tmp_path_factory.mktemp("mixed")
    data = tiny.read_bytes()
    for name, content in {
        "tiny": data,
        "cut": data[:-100],
        "header": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
        "old": b"old",
        "unknown": data.replace(b"llama", b"llamb"),
    }.items():
        (folder / f"{name}.gguf").write_bytes(content)
    (folder / "link.gguf").symlink_to("tiny.gguf")
    gemma3(folder / "narrow.gguf", window=8)
    return folder


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("no.gguf out.gguf", "the file no.gguf does not exist"),
        ("cut.gguf out.gguf", "cut.gguf is truncated or damaged"),
        ("header.gguf out.gguf", "header.gguf is not a model: it has no weights"),
        ("unknown.gguf out.gguf", "unknown model architecture: 'llamb'"),
        ("tiny.gguf", "usage: openai-cpu-server quantize IN OUT --type TYPE"),
        ("tiny.gguf old.gguf", "old.gguf exists already: --force replaces it"),
        ("tiny.gguf tiny.gguf --force", "is the input"),
        ("tiny.gguf link.gguf --force", "is the input"),
        ("tiny.gguf no/out.gguf", "/no does not exist"),
        ("tiny.gguf .", "is a folder: name the file"),
        ("tiny.gguf /dev/null --force", "/dev/null is not an ordinary file"),
        ("tiny.gguf out.gguf --type q4_m", "unknown type 'q4_m': did you mean q4_k_m"),
        ("tiny.gguf out.gguf --type iq1_s", "this type needs an importance matrix: --imatrix FILE"),
        ("tiny.gguf out.gguf --threads 0", "--threads must be at least 1, not 0"),
        ("tiny.gguf out.gguf --output-tensor-type q8", "no tensor type 'q8'"),
        ("tiny.gguf out.gguf --tensor-type q8_0", "write NAMES=TYPE"),
        ("tiny.gguf out.gguf --type q4_0 --tensor-type (=q8_0", "cannot quantise tiny.gguf: "),
        (
            "narrow.gguf out.gguf --token-embedding-type q6_k",
            "token_embd.weight cannot be q6_K: its rows of 64 values are not a multiple of 256",
        ),
    ],
)
def test_wrong_use_is_one_line(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, line: str, run: Run
) -> None:
    monkeypatch.chdir(mixed)
    before = file_names(mixed)
    message = run("--type", "q8_0", *arguments.split()).refusal
    assert line in message
    assert message.startswith("openai-cpu-server: ")
    assert file_names(mixed) == before
    assert Path("old.gguf").read_bytes() == b"old"


def test_force_replaces_and_follows_links(tiny: Path, tmp_path: Path, quantize: Run) -> None:
    (tmp_path / "old.gguf").write_bytes(b"old")
    (tmp_path / "link.gguf").symlink_to("old.gguf")
    quantize(tiny, tmp_path / "link.gguf", "--type", "q8_0", "--force")
    assert (tmp_path / "link.gguf").is_symlink()
    assert types(tmp_path / "old.gguf")["output.weight"] == "q8_0"


# -- failures during the work --------------------------------------------------------------------------


def test_disk_space_is_checked_before(tmp_path: Path) -> None:
    OutputFiles(tmp_path / "out.gguf").require_room(1)
    line = r"not enough disk space for .*: it needs 1000000 TB, and .* are free"
    with pytest.raises(StartupError, match=line):
        OutputFiles(tmp_path / "out.gguf").require_room(10**18)


def test_a_full_disk_is_one_line_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"old")
    done = subprocess.run(
        [*COMMAND, "quantize", str(tiny), str(tmp_path / "out.gguf"), "--type", "q8_0", "--force"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"openai-cpu-server: cannot write {tmp_path / 'out.gguf'}: "
        "the disk is full, or a limit of file sizes is reached\n"
    )
    assert file_names(tmp_path) == ["out.gguf"]
    assert (tmp_path / "out.gguf").read_bytes() == b"old"


def test_weights_that_are_not_numbers(tiny: Path, tmp_path: Path, run: Run) -> None:
    data = bytearray(tiny.read_bytes())
    (tensor,) = [t for t in model_tensors(GgufHeader(tiny)) if t.name == "blk.1.ffn_up.weight"]
    data[tensor.start : tensor.start + 4] = struct.pack("<f", float("nan"))
    (tmp_path / "nan.gguf").write_bytes(data)
    done = run(tmp_path / "nan.gguf", tmp_path / "out.gguf", "--type", "q4_k_m")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"[^\n]*cannot quantise[^\n]*(invalid|validation failed)[^\n]*\n", done.stderr)
    assert file_names(tmp_path) == ["nan.gguf"]


INTERRUPTED = "openai-cpu-server: interrupted, nothing was written\n"


@pytest.mark.parametrize(
    ("target", "number", "code", "line"),
    [
        ("both", signal.SIGINT, 128 + signal.SIGINT, INTERRUPTED),  # as Ctrl-C
        ("command", signal.SIGTERM, 128 + signal.SIGTERM, INTERRUPTED),
        pytest.param("command", signal.SIGHUP, 128 + signal.SIGHUP, INTERRUPTED, marks=pytest.mark.slow),
        ("command", signal.SIGKILL, -signal.SIGKILL, ""),
        ("worker", signal.SIGKILL, 1, ": the process was killed; did memory run out?\n"),
        ("worker", signal.SIGSEGV, 1, ": llama.cpp crashed (SIGSEGV)\n"),
    ],
)
def test_a_run_that_ends_early_leaves_nothing_and_prints_one_line(
    smollm2: Path, tmp_path: Path, target: str, number: signal.Signals, code: int, line: str
) -> None:
    """End a run of a minute that has begun to write. It leads a process group, as a shell's job does."""
    options = ("--type", "iq3_s", "--threads", "1", "--allow-requantize")
    command = [*COMMAND, "quantize", str(smollm2), str(tmp_path / "out.gguf"), *options]
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:
        try:
            wait_until(lambda: any(tmp_path.glob(".out.gguf.*.part/out.gguf")))
            (worker,) = psutil.Process(process.pid).children()
            kill, pid = (os.killpg if target == "both" else os.kill), process.pid
            kill(worker.pid if target == "worker" else pid, number)
            _, messages = process.communicate()
            psutil.wait_procs([worker], timeout=DEADLINE_S)
        finally:
            process.kill()
    assert (process.returncode, messages.count("\n")) == (code, line.count("\n"))
    assert messages.endswith(line)
    assert file_names(tmp_path) == []
    assert not worker.is_running()


def test_a_terminal_shows_a_progress_bar(tiny: Path, tmp_path: Path) -> None:
    done = seen_on_a_terminal(
        [*COMMAND, "quantize", str(tiny), str(tmp_path / "out.gguf"), "--type", "iq3_s"]
    )
    assert done.returncode == 0
    assert b"out.gguf" in done.terminal
    assert b"writing to disk" in done.terminal  # earlier phases may end between two updates
    assert re.search(rb"\d\d%", done.terminal)
    assert b"\x1b" not in done.output
    assert done.output.startswith(b"out.gguf: made in ")
