"""`tune`: the search in isolation, and the command on the tiny model as a user runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from openai_cpu_server.cli.tune.search import (
    TuneFailure,
    TuneGoal,
    TuneRow,
    TuneTimings,
    WorkloadPart,
    factors,
    num_trials,
    search,
    winner,
)
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.measure.measurements import Profile, load_profile, save_profile
from tests import warm
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.thorough

START = Profile(
    threads=4, threads_batch=4, repack=False, prefill_tokens=256, kv_type="f16", flash_attention=True
)
THREADS = (2, 4, 8)
CHUNKS = (64, 256)


class Machine:
    """A machine that takes 10 ms per token, times a factor of each option. It records its measurements."""

    def __init__(self, **effects: dict[object, float]) -> None:
        self.effects = effects
        self.measurements: list[tuple[Profile, tuple[WorkloadPart, ...]]] = []

    def measure(self, profile: Profile, parts: tuple[WorkloadPart, ...]) -> TuneTimings | TuneFailure:
        self.measurements.append((profile, parts))
        ms = 10.0
        for name, effect in self.effects.items():
            ms *= effect.get(getattr(profile, name), 1.0)
        if ms < 0:
            return TuneFailure("crashed (exit code -11)")
        return TuneTimings(
            context=512,
            prefill_ms=ms if WorkloadPart.PREFILL in parts else None,
            short_prompt_ms=64 * ms if WorkloadPart.PREFILL in parts else None,
            decode_one_ms=ms if WorkloadPart.DECODE_ONE in parts else None,
            decode_few_ms=ms if WorkloadPart.DECODE_MANY in parts else None,
            decode_many_ms=ms if WorkloadPart.DECODE_MANY in parts else None,
        )


def run(machine: Machine, goal: TuneGoal = TuneGoal.THROUGHPUT, start: Profile = START) -> list[TuneRow]:
    plan = factors(goal, threads=THREADS, prefill_tokens=CHUNKS)
    rows = list(search(start, plan, goal, machine.measure))
    if rows[0].timings is not None:
        assert len(rows) == num_trials(start, plan)
    return rows


@pytest.mark.parametrize("goal", TuneGoal)
def test_the_best_of_each_factor_is_found_on_top_of_the_best_before(goal: TuneGoal) -> None:
    machine = Machine(repack={True: 0.5}, kv_type={"bf16": 0.9, "f32": 0.8}, threads_batch={8: 0.7})
    best = winner(run(machine, goal))
    assert (best.profile.repack, best.profile.kv_type, best.profile.threads_batch) == (True, "f32", 8)
    assert (best.profile.flash_attention, best.profile.prefill_tokens) == (True, 256)
    noise = run(Machine(repack={True: 0.98}, kv_type={"f32": 0.99}), goal)
    assert winner(noise) is noise[0]


def test_only_the_parts_that_a_factor_changes_are_timed_again() -> None:
    machine = Machine()
    run(machine)
    parts = {p.threads: parts for p, parts in machine.measurements if p.threads != START.threads}
    assert set(parts.values()) == {(WorkloadPart.DECODE_ONE,)}
    chunks = [parts for p, parts in machine.measurements if p.prefill_tokens != START.prefill_tokens]
    assert chunks == [(WorkloadPart.PREFILL,)]


def test_threads_are_chosen_by_one_sequence_alone() -> None:
    best = winner(run(Machine(threads={2: 0.1}), TuneGoal.LATENCY))
    assert (best.profile.threads, best.profile.threads_batch) == (2, 4)
    old = TuneTimings(context=512, prefill_ms=1.0, decode_one_ms=2.0)
    newer = old.updated(TuneTimings(context=512, decode_one_ms=3.0))
    assert newer == TuneTimings(context=512, prefill_ms=1.0, decode_one_ms=3.0)


def test_quantised_cells_without_flash_attention_are_not_tried() -> None:
    machine = Machine(kv_type={"q8_0": 0.5})
    rows = run(machine)
    (without,) = [row for row in rows if row.factor == "flash_attention"]
    assert (without.timings, without.note) == (None, "needs flash attention")
    assert all(p.flash_attention for p, _ in machine.measurements)


def test_a_setting_that_crashes_is_out() -> None:
    rows = run(Machine(repack={True: -1.0}, kv_type={"f32": 0.5}))
    assert (rows[1].note, rows[1].is_better) == ("crashed (exit code -11)", False)
    assert winner(rows).profile.kv_type == "f32"
    (only,) = run(Machine(repack={False: -1.0}))
    assert only.timings is None, "the search ends if the defaults fail"


# -- profiles ------------------------------------------------------------------------------------------


def test_a_profile_is_for_one_model_on_one_machine(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    os.utime(copy, ns=(1, 1))
    assert load_profile(tiny, tmp_path) is None
    path = save_profile(tiny, tmp_path, START)
    assert path is not None
    assert load_profile(tiny, tmp_path) == START
    assert load_profile(copy, tmp_path) is None
    assert load_profile(tmp_path / "absent.gguf", tmp_path) is None
    path.write_text(path.read_text().replace('"threads": 4', '"threads": "many"'))
    assert load_profile(tiny, tmp_path) is None, "the profile is damaged"


def test_a_profile_sets_its_options_and_no_others(tiny: Path) -> None:
    options = START.applied(EngineOptions(model_path=str(tiny), kv_tokens=1024, max_seqs=3))
    assert (options.kv_tokens, options.max_seqs, options.threads, options.repack) == (1024, 3, 4, False)


# -- the command ---------------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "openai_cpu_server", "tune", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"})


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("goal", ["throughput", "latency"])
def test_tuning_the_tiny_model(tiny: Path, tmp_path: Path, goal: str) -> None:
    done = command(tiny, "--for", goal, "--cache-dir", tmp_path, "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"the gain in {goal}" in done.stdout
    for setting in ("defaults", "kv-type f32", "kv-type bf16", "kv-type q8_0", "flash-attention off"):
        assert setting in done.stdout
    assert done.stdout.count("best") == 1
    profile = load_profile(tiny, tmp_path)
    assert profile is not None
    assert f"--kv-type {profile.kv_type}" in done.stdout
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.slow
@pytest.mark.native
def test_results_disturbed_by_other_processes_are_shown_but_not_stored(tiny: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(max(1, (os.cpu_count() or 1) // 2)):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        done = command(tiny, "--for", "latency", "--cache-dir", tmp_path)
    assert done.returncode == 0
    assert "defaults" in done.stdout
    assert "Not stored: other processes took" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.native
def test_ctrl_c_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "openai_cpu_server", "tune", str(tiny), "--cache-dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(psutil.Process(process.pid).children)  # the first measurement runs
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.native
def test_a_wrong_model_is_one_line(tmp_path: Path) -> None:
    """tests/llama/test_loading.py covers the kinds of damage."""
    done = warm.run("tune", str(tmp_path / "m.gguf"), "--cache-dir", str(tmp_path / "cache"))
    assert (done.returncode, done.stdout.strip(), len(done.stderr.splitlines())) == (2, "", 1)
    assert "does not exist" in done.stderr
    assert not (tmp_path / "cache").exists()
