#!/usr/bin/env python3
"""Install only what a user has (`pip install .`, then each extra alone), serve, ask, read an encrypted PDF
and run the commands of the manual.

Tests run with more packages than are shipped; this finds those that are missing. The wheel of
llama-cpp-python is that of scripts/bootstrap, so that nothing is compiled twice.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "packaging"))
from check_server import ask, serving

ROOT = Path(__file__).resolve().parent.parent

# Each command of a ```console block runs, unless one of these has a reason against it; the first counts.
EXCLUDED = (
    (r"^(scripts/|\.venv/bin/|for )", "is for a checkout, not for an installed package"),
    (r"openai-cpu-server (run|chat) ", "talks to a model: tests/cli/test_chat.py has it"),
    (r"^(export|claude\b)", "sets up a client that this machine does not have"),
    (r"^(pip|CMAKE_ARGS=.* pip|uvx|pipx) ", "installs: that is the rest of this script"),
    (r"^(tar|cmake) ", "builds llama-server to compare with"),
    (r"hf:OWNER/REPO|^openai-cpu-server (pull|rm) ", "fetches a model from a hub, or removes it"),
    (r"localhost:11434|--port 11434", "tests/e2e/test_from_ollama.py runs these, beside Ollama's client"),
    (r"PATH\.gguf|~/models", "starts a server of a model of the reader's"),
    (r"qwen3-moe\.gguf", "reads a model that scripts/benchmark.py makes, 1 GB"),
    (r"/v1/(embeddings|rerank)", "needs a model that embeds: run with the extra minilm below"),
)
# What the manual leaves to the reader.
FILLED_IN = {
    "[...]": '[{"role": "user", "content": "Hi"}]',
    "mistral-7b": "demo",
    "curl ": "curl -sS --fail-with-body ",
}
FILES = {
    "rows.jsonl": '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A"}}\n',
    "review.json": '{"type": "object", "properties": {"stars": {"enum": [1, 2, 3, 4, 5]}}}',
    "answer.json": '{\n  "stars": 6}',
}
# A check that finds something ends with 1.
EXPECTED_STATUS = {"openai-cpu-server grammar review.json --check answer.json": 1}

ENCRYPTED_PDF = """
import sys
from io import BytesIO
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject as Name
writer, text = PdfWriter(), DecodedStreamObject()
text.set_data(b"BT /F1 12 Tf 10 100 Td (The key is green.) Tj ET")
font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
font = DictionaryObject({Name(key): Name(value) for key, value in font.items()})
page = writer.add_blank_page(200, 200)
page[Name("/Resources")] = DictionaryObject({Name("/Font"): DictionaryObject({Name("/F1"): font})})
page[Name("/Contents")] = text
writer.encrypt("", "owner", algorithm="AES-256")
writer.write(written := BytesIO())
sys.stdout.buffer.write(written.getvalue())
"""

# Nothing listens at this port: a server goes on without Redis and without a collector of traces.
NOWHERE = "127.0.0.1:9"
SERVED_WITH = {
    "otel": ("--otel-endpoint", f"http://{NOWHERE}"),
    "mcp": ("--mcp-allow-url", "127.0.0.1"),
    "redis": ("--limits-url", f"redis://{NOWHERE}"),
}
RUN_WITH = {
    "bench": ("scripts/make_model.py", "--shape", "tiny", "--quant", "f32", "--output", "model.gguf"),
    "docs": ("-m", "zensical", "--version"),
    "postgres": ("-c", "import psycopg; assert psycopg.pq.__impl__ == 'binary'"),
}
MODELS = ("smollm2", "minilm")
NOT_TRIED = {
    "dev": "what tests need: scripts/test has it",
    "ray": "240 MB unpacked: scripts/test has it, and starts it",
    "gemma3-270m": "238 MB: scripts/test has it, and smollm2 comes the same way",
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    started = time.monotonic()
    bootstrap = subprocess.run(
        [ROOT / "scripts/bootstrap", "wheel"], stdout=subprocess.PIPE, text=True, check=True
    )
    wheel = Path(bootstrap.stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # Nothing of this machine's user is read or changed.
        os.environ.update(XDG_CACHE_HOME=str(place / "cache"), XDG_DATA_HOME=str(place / "data"))
        subprocess.run([sys.executable, "-m", "venv", place / "user"], check=True)
        user = place / "user/bin/python"
        pip(user, "--find-links", str(wheel.parent), str(ROOT))
        report("pip install .", started)
        with serving(user, "--model", "demo") as address:
            text = ask(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 8})["choices"][0]["text"]
            report(f"answers {text!r}", started)
            read_encrypted_pdf(user, address)
            report("reads a PDF that is encrypted with AES", started)
            run_manual(user, address, place)
            report("runs the commands of the manual", started)
        for extra in extras():
            if extra not in NOT_TRIED:
                try_extra(extra, user, place / extra)
                report(f"has what [{extra}] needs", started)
    for extra, reason in NOT_TRIED.items():
        print(f"check_install: [{extra}] not tried: {reason}")


def report(text: str, started: float) -> None:
    print(f"check_install: {text} ({time.monotonic() - started:.0f} s)", flush=True)


def pip(python: Path, *arguments: str) -> None:
    command = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", *arguments]
    subprocess.run(command, check=True)


def extras() -> list[str]:
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    return re.findall(r"^([a-z0-9-]+) = \[", section.partition("\n[")[0], re.MULTILINE)


def read_encrypted_pdf(python: Path, address: str) -> None:
    data = subprocess.run([python, "-c", ENCRYPTED_PDF], stdout=subprocess.PIPE, check=True).stdout
    file = {"file_data": base64.b64encode(data).decode(), "filename": "secret.pdf"}
    message = {"role": "user", "content": [{"type": "file", "file": file}]}
    tokens = ask(f"{address}/tokenize", {"messages": [message]})["tokens"]
    prompt = ask(f"{address}/detokenize", {"tokens": tokens})["prompt"]
    assert "The key is green." in prompt, prompt


def commands() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE):
                yield page.name, command


def run_manual(python: Path, address: str, place: Path) -> None:
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "model_assets").symlink_to(ROOT / "model_assets")
    num_run = 0
    for page, command in commands():
        reason = next((reason for pattern, reason in EXCLUDED if re.search(pattern, command)), None)
        if reason is None:
            run_command(page, command, python, address, place)
            num_run += 1
        else:
            print(f"check_install: {page}: not run ({reason}): {command.splitlines()[0][:60]}")
    assert num_run >= 8, "the manual's commands are not found any more"


def run_command(page: str, command: str, python: Path, address: str, place: Path) -> None:
    filled_in = re.sub(r"(http://)?(127\.0\.0\.1|localhost):8000", address, command)
    for text, to in FILLED_IN.items():
        filled_in = filled_in.replace(text, to)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", filled_in],
        cwd=place,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != EXPECTED_STATUS.get(command, 0):
        raise SystemExit(f"{page}: `{filled_in}` ended with {done.returncode}:\n{done.stdout[-2000:]}")


def try_extra(extra: str, user: Path, folder: Path) -> None:
    """Install into a copy of the user's environment. Its files are links, because pip replaces files and
    writes into none."""
    shutil.copytree(user.parent.parent, folder, symlinks=True, copy_function=os.link)
    python = folder / "bin/python"
    if extra in MODELS:  # as the manual does: what the package depends on is for other programs
        project = (ROOT / "pyproject.toml").read_text()
        pip(python, "--no-deps", *re.findall(rf'^{extra} = \["(.*)"\]', project, re.MULTILINE))
        with serving(python, "--model", extra) as address:
            try_model(extra, address)
    else:
        pip(python, f"openai-cpu-server[{extra}]")
    if extra in SERVED_WITH:
        with serving(python, "--model", "demo", *SERVED_WITH[extra]) as address:
            ask(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 2})
    if extra in RUN_WITH:
        program, *arguments = RUN_WITH[extra]
        program = str(ROOT / program) if program.startswith("scripts/") else program
        subprocess.run([python, program, *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    assert extra in (*MODELS, *SERVED_WITH, *RUN_WITH), f"say how [{extra}] is tried, or why it is not"


def try_model(extra: str, address: str) -> None:
    if extra == "minilm":
        for page, command in commands():
            if page == "embeddings.md":
                run_command(page, command, Path(sys.executable), address, Path.cwd())
    else:
        ask(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 2})


if __name__ == "__main__":
    main()
