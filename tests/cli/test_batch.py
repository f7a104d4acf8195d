"""`openai-cpu-server batch` as a process, on the tiny model."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from openai_cpu_server.cli.batch import batch
from openai_cpu_server.config.settings import OPTIONS_OF_SERVERS
from openai_cpu_server.errors import StartupError
from tests import warm
from tests.terminal import seen_on_a_terminal
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def write_rows(folder: Path, *limits: int) -> None:
    """Write a row for each limit of tokens, which its generation always reaches."""
    rows = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"Row {number}.", "max_tokens": limit, "ignore_eos": True},
        }
        for number, limit in enumerate(limits)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(folder: Path, *options: str) -> list[str]:
    files = [str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
    return ["batch", *files, "--model", str(tiny_model_path()), "--calibrate", "never", *options]


def names(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_rows_are_answered(tmp_path: Path) -> None:
    write_rows(tmp_path, *[4] * 20)
    done = warm.run(*command(tmp_path))
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out.jsonl") == [f"r{n}" for n in range(20)]
    assert files(tmp_path) == ["in.jsonl", "out.jsonl"]
    assert "20 of 20 rows" in done.stderr
    again = warm.run(*command(tmp_path))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


def test_failed_rows_have_a_file_and_an_exit_code(tmp_path: Path) -> None:
    write_rows(tmp_path, 4, 4, 4, -1, 4)
    done = warm.run(*command(tmp_path))
    assert done.returncode == 1, done.stderr
    assert names(tmp_path / "out.jsonl") == ["r0", "r1", "r2", "r4"]
    assert names(tmp_path / "out.errors.jsonl") == ["r3"]
    assert "4 of 5 rows" in done.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_run_continues_with_equal_input_only(tmp_path: Path, number: signal.Signals) -> None:
    """Interrupt the last row, which takes far longer than all before."""
    write_rows(tmp_path, *[4] * 5, 800)
    state = tmp_path / "out.jsonl.jobs"
    process = warm.start(*command(tmp_path, "--batch-concurrency", "1"))
    wait_until(lambda: state.exists() and num_done(state) == 5)
    process.send_signal(number)
    output = process.end()
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "the same command continues the batch" in output
    assert files(tmp_path)[:2] == ["in.jsonl", "out.jsonl.jobs"]
    assert num_done(state) == 5
    original = (tmp_path / "in.jsonl").read_text()
    write_rows(tmp_path, *[4] * 7)
    other = warm.run(*command(tmp_path))
    assert (other.returncode, "another content" in other.stderr) == (2, True)
    (tmp_path / "in.jsonl").write_text(original)
    end = warm.run(*command(tmp_path))
    assert end.returncode == 0, end.stderr
    assert names(tmp_path / "out.jsonl") == [f"r{n}" for n in range(6)]
    assert files(tmp_path) == ["in.jsonl", "out.jsonl"]


def num_done(state: Path) -> int:
    """Return the number of finished rows; 0 while the tables are being created."""
    with contextlib.closing(sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True)) as database:
        try:
            return int(database.execute("SELECT count(*) FROM results").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        ("", (), "no line"),
        ('{"url": "/v1/completions"}\n[]\n', (), "line 2: This line is not a JSON object."),
        (None, (), "does not exist"),
        ("x", ("--cors-origin=*",), "--cors-origin is an option of the server"),
        ("x", ("--nonsense",), "nonsense"),
        ("x", ("--errors", "/nowhere/in.jsonl", "--overwrite"), "the directory /nowhere does not exist"),
    ],
)
def test_wrong_use_is_reported_before_the_batch_begins(
    tmp_path: Path, content: str | None, options: tuple[str, ...], line: str
) -> None:
    if content is not None:
        (tmp_path / "in.jsonl").write_text(content)
    done = warm.run(*command(tmp_path, *options))
    assert (done.returncode, line in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert files(tmp_path) == ([] if content is None else ["in.jsonl"])


@pytest.mark.parametrize("name", sorted(OPTIONS_OF_SERVERS))
def test_an_option_of_servers_is_refused_in_each_spelling(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.jsonl").write_text("x")
    option = name.replace("_", "-")
    for switch in (f"--{option}", f"--{option}=1", f"--no-{option}"):
        with pytest.raises(StartupError, match=f"^{switch.partition('=')[0]} is an option of the server"):
            batch([*command(tmp_path)[1:], switch])


@pytest.mark.slow
def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    """Check the bar of even the shortest run; the result replaces the bar."""
    write_rows(tmp_path, 4, 4, 4)
    done = seen_on_a_terminal([sys.executable, "-m", "openai_cpu_server", *command(tmp_path)])
    assert done.returncode == 0
    bar, _, result = done.terminal.rpartition(b"\x1b")
    assert b"in.jsonl" in bar
    assert b" tokens" in bar
    assert b"3 of 3 rows" in result
