"""`openai-cpu-server batch` as a process, on the tiny model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openai_cpu_server.cli.batch import batch
from openai_cpu_server.config.settings import OPTIONS_OF_SERVERS
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.store.batches import BatchLedger, new_holder
from openai_cpu_server.jobs.store.database import open_database
from tests import warm
from tests.terminal import seen_on_a_terminal
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

URL = "/v1/completions"


def write_rows(path: Path, num_rows: int, *, max_tokens: int = 4, bad: int | None = None) -> None:
    def row(number: int) -> str:
        body = {
            "prompt": f"Row {number}.",
            "max_tokens": -1 if number == bad else max_tokens,
            "ignore_eos": True,
        }
        return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": URL, "body": body})

    path.write_text("".join(row(n) + "\n" for n in range(num_rows)))


def command(folder: Path, *options: str) -> list[str]:
    files = [str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
    model = ["--model", str(tiny_model_path()), "--calibrate", "never"]
    return ["batch", *files, *model, *options]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return warm.run(*command(folder, *options), timeout=DEADLINE_S)


def names(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_rows_are_answered(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out.jsonl") == [f"r{n}" for n in range(20)]
    assert files(tmp_path) == ["in.jsonl", "out.jsonl"]
    assert "20 of 20 rows" in done.stderr
    again = run(tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_rows_that_fail_have_a_file_and_an_exit_code(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 5, bad=3)
    done = run(tmp_path)
    assert done.returncode == 1, done.stderr
    assert names(tmp_path / "out.jsonl") == ["r0", "r1", "r2", "r4"]
    assert names(tmp_path / "out.errors.jsonl") == ["r3"]
    assert "4 of 5 rows" in done.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    write_rows(tmp_path / "in.jsonl", 60, max_tokens=20)
    process = warm.start(*command(tmp_path, "--batch-concurrency", "1"))
    done = wait_for_rows(tmp_path / "out.jsonl.jobs", 5)
    process.send_signal(number)
    said = process.end()
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on where it was" in said
    assert files(tmp_path)[:2] == ["in.jsonl", "out.jsonl.jobs"]
    kept = rows_done(tmp_path / "out.jsonl.jobs")
    assert len(kept) >= done
    end = run(tmp_path)
    assert end.returncode == 0, end.stderr
    assert names(tmp_path / "out.jsonl") == [f"r{n}" for n in range(60)]
    assert files(tmp_path) == ["in.jsonl", "out.jsonl"]


def test_a_state_of_another_input_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 60, max_tokens=20)
    process = warm.start(*command(tmp_path, "--batch-concurrency", "1"))
    wait_for_rows(tmp_path / "out.jsonl.jobs", 1)
    process.send_signal(signal.SIGINT)
    process.end()
    assert process.returncode == 130
    write_rows(tmp_path / "in.jsonl", 61, max_tokens=20)
    other = run(tmp_path)
    assert other.returncode == 2
    assert "another content" in other.stderr
    assert "out.jsonl.jobs" in files(tmp_path)


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("", (), "no line"),
        ("{\n", (), "no line"),
        ('{"url": "/v1/completions"}\n[]\n', (), "line 2: This line is not a JSON object."),
        (None, (), "there is no file"),
        ("x", ("--cors-origin=*",), "--cors-origin is for servers"),
        ("x", ("--nonsense",), "nonsense"),
        ("x", ("--errors", "/nowhere/in.jsonl", "--overwrite"), "there is no directory /nowhere"),
    ],
)
def test_wrong_use_is_said_before_anything_begins(
    tmp_path: Path, content: str | None, options: tuple[str, ...], said: str
) -> None:
    if content is not None:
        (tmp_path / "in.jsonl").write_text(content)
    done = run(tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == ([] if content is None else ["in.jsonl"])


@pytest.mark.parametrize("name", sorted(OPTIONS_OF_SERVERS))
def test_an_option_of_servers_is_refused_by_each_name_that_it_has(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.jsonl").write_text("x")
    given = name.replace("_", "-")
    for switch in (f"--{given}", f"--{given}=1", f"--no-{given}"):
        with pytest.raises(StartupError, match=f"^{switch.partition('=')[0]} is for servers"):
            batch([*command(tmp_path)[1:], switch])


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    """What it shows at the least, however soon all is over; it is gone when the result is told."""
    write_rows(tmp_path / "in.jsonl", 3)
    done = seen_on_a_terminal([sys.executable, "-m", "openai_cpu_server", *command(tmp_path)])
    assert done.returncode == 0
    bar, _, result = done.terminal.rpartition(b"\x1b")
    assert b"in.jsonl" in bar
    assert b" tokens" in bar
    assert b"3 of 3 rows" in result


def rows_done(state: Path) -> set[int]:
    database = open_database(str(state))
    ledger = BatchLedger(database, holder=new_holder(), lease_s=1)
    found = ledger.unfinished("any", 2**40)
    done = {line for batch in found for line in ledger.ended_rows(batch.id)}
    database.close()
    return done


def wait_for_rows(state: Path, num_rows: int) -> int:
    """While it runs: its lease does not matter to one who only looks."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if state.exists() and len(done := rows_done(state)) >= num_rows:
            return len(done)
        time.sleep(0.1)
    raise AssertionError("no rows")
