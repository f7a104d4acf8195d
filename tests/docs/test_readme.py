"""Commands, programs and options of the README and the manual work as they are written."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.config.settings import Settings
from tests.docs.markdown import DOCS, PAGES, README, ROOT, blocks, code
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

_ADDRESS = "http://127.0.0.1:8000"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+\b")
_OF_OTHERS = {"--gpu", "--no-binary", "--no-deps", "--no-repack", "--strict", "--target", "--worker-urls"}
"""Options of other programs; `--gpu` is of scripts/serve."""
_ON_PAGES = {
    "contributing.md": "busy inline-snapshot",
    "benchmark.md": "cache-ram ctx-checkpoints slot-save-path swa-full",
    "deploy.md": "build build-arg cap-drop cpuset-cpus detach file format header mode now publish read-only "
    "rm set stop-timeout tag tmpfs values volume",
    "gpu.md": "build-arg device env file find-links gpus group-add no-cache-dir tag",
    "llama-server.md": "batch-size",
    "openvino.md": "pull weight-format",
    "start.md": "find-links from pip-args spec",
    "vllm.md": "allowed-local-media-path allowed-media-domains allowed-origins data-parallel-size dtype "
    "enable-auto-tool-choice enable-chunked-prefill enable-lora enable-prefix-caching gpu-memory-utilization "
    "kv-cache-dtype lora-modules max-model-len max-num-batched-tokens max-num-seqs quantization "
    "reasoning-parser scheduling-policy speculative-config tool-call-parser",
    "gateways.md": "health-check-interval-secs health-failure-threshold load-monitor-interval policy values "
    "worker-overload-token-usage",
}
"""Those of llama-server, Docker, Helm, gateways and others, which one page needs."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--served-model-name", "smollm2", "--max-output-tokens", "50")
    with ServerProcess("--model", str(tiny_model_path()), *options) as process:
        yield process


@pytest.mark.native
@pytest.mark.parametrize("page", [README, DOCS / "start.md"], ids=lambda page: page.name)
def test_its_curl_streams_an_answer(server: ServerProcess, page: Path) -> None:
    (command,) = (block for block in blocks(page, "console") if block.startswith("$ curl"))
    line = command.removeprefix("$ ").replace(_ADDRESS, server.url)
    assert subprocess.check_output(["bash", "-c", line], text=True).rstrip().endswith("data: [DONE]")


@pytest.mark.native
@pytest.mark.thorough
def test_its_programs_and_the_manuals_work(server: ServerProcess, tmp_path: Path) -> None:
    """They run as one program, in the order of the pages: later ones use the first one's client."""
    (row,) = blocks(DOCS / "batch-jobs.md", "json")
    (tmp_path / "rows.jsonl").write_text(row)
    programs = [program for page in PAGES for program in blocks(page, "python")]
    assert len(programs) >= 4
    command = [sys.executable, "-c", "\n".join(programs).replace(_ADDRESS, server.url)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"custom_id":"1"' in done.stdout.replace(" ", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_and_options_that_are_named_exist(page: Path) -> None:
    texts = list(code(page))
    named = {name for text in texts for name in re.findall(r"(?<![\w/.])scripts/[\w./]+", text)}
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []
    commands = [name for text in texts for name in re.findall(r"^\$ (scripts/\S+)", text, re.M)]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)
    options = {option for text in texts for option in _OPTION.findall(text)}
    others = _OF_OTHERS | {f"--{name}" for name in _ON_PAGES.get(page.name, "").split()}
    assert options - options_of_ours() - others == set()


@functools.cache
def options_of_ours() -> set[str]:
    """Those of `serve`, and those that stand as texts in the programs."""
    sources = [*ROOT.glob("openai_cpu_server/**/*.py"), *ROOT.glob("scripts/**/*.py")]
    written = {option for source in sources for option in re.findall(r'"(--[a-z-]+)"', source.read_text())}
    kebabs = [name.replace("_", "-") for name in Settings.model_fields]
    return {*(f"--{kebab}" for kebab in kebabs), *(f"--no-{kebab}" for kebab in kebabs), *written}
