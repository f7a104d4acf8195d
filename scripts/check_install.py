#!/usr/bin/env python3
"""Install the package as a user does (`pip install .`, then each extra alone), serve, send requests, read an
encrypted PDF and run the commands of the manual.

The tests run with more packages than users install; this script finds missing dependencies. It uses the wheel
of llama-cpp-python from scripts/bootstrap, so nothing is compiled twice.
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
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "packaging"))
from check_server import fetch, serving

ROOT = Path(__file__).resolve().parent.parent

# Each command of a console or sh block runs, unless one of these has a reason against it; the first counts.
EXCLUDED = (
    (r"^(scripts/(?!serve )|\.venv/bin/|for )", "is for a checkout, not for an installed package"),
    (r"openai-cpu-server (run|chat) ", "talks to a model: tests/cli/test_chat.py has it"),
    (r"^scripts/serve --(gpu|with) ", "sets up a checkout"),
    (r"^(export|claude\b)", "sets up a client that this machine does not have"),
    (r"^(pip|CMAKE_ARGS=.* pip|uvx|pipx) ", "installs: that is the rest of this script"),
    (r"^(tar|cmake) ", "builds llama-server to compare with"),
    (r"^openai-cpu-server (pull|rm) ", "fetches a model from a hub, or removes it"),
    (r"localhost:11434|--allow-pull --port 11434", "tests/e2e/test_from_ollama.py runs these"),
    (r"qwen3-moe\.gguf", "reads a model that scripts/benchmark.py makes, 1 GB"),
    (r"/v1/(embeddings|rerank)|--model minilm", "needs a model that embeds: run with the extra minilm below"),
    (r"/audio/", "needs a model that takes sound: tests/e2e/test_sounds.py has it"),
    (r"legal", "needs adapters: tests/e2e/test_adapters.py has these"),
    (r"/v1/events", "does not end: tests/api/test_events.py reads this stream"),
    (r"^(docker|helm|kubectl|cd deploy|\./make-secrets)\b|secrets/api_key", "needs Docker or Kubernetes"),
    (r"^(python3 -m venv /opt|/opt/|install |cp |systemctl )", "changes the system"),
    (r"--otel-endpoint|--config server.toml", "needs an extra"),
    (r"^smg |--host 10\.", "needs several machines"),
    (r"^openai-cpu-server ray |^serve ", "starts a cluster: tests/replicas has it"),
)
# Values for the placeholders of the manual.
FILLED_IN = {
    "scripts/serve ": "openai-cpu-server serve ",
    "[...]": '[{"role": "user", "content": "Hi"}]',
    "mistral-7b": "demo",
    "smollm2": "demo",
    "hf:OWNER/REPO:Q4_K_M": "demo",
    "PATH.gguf": "model_assets/demo.gguf",
    "~/models": "models",
    "~/.codex/": "",
    "curl ": "curl -sS --fail-with-body ",
}
FILES = {
    "rows.jsonl": '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A"}}\n',
    "review.json": '{"type": "object", "properties": {"stars": {"enum": [1, 2, 3, 4, 5]}}}',
    "answer.json": '{\n  "stars": 6}',
}
SERVES = re.compile("openai-cpu-server (serve |--)")
# A check that finds something ends with 1.
EXPECTED_STATUS = {"openai-cpu-server grammar review.json --check answer.json": 1}

# Encrypted with AES-256 and an empty user password: what "printing forbidden" does. Compressed.
ENCRYPTED_PDF = """
eNptVD2IXUUUtrK4igS0EPxhQLYQYu7MmX94PMnuvkXRsMs+kyIhxfyc2TzZfXe5776YKNhYiZVYRDslaS1NGdFSRIsIgnYRwcYygp3nvt3s
PvK83IE5Z87vd76ZtZ3NrdfEOVmtPfjj5/uVYJw18d1qMKjqd24eIqs3Qhf2m72q3gl7OGNABrvVcFjhNPeGsOKwsKvqjWY+7Zio6rcmecau
MNk7sqtLrvJ/Xat6F2fNvE2UrD/ZaijMYiPYqWWvrerxPHYLsVdSqvUww4V9/QbuX8dukkKf7+ivL2CehPXmBhXDz/HFAn60rvbttUieR/1R
9dOOxBlTj/Wrlop+G6d73TXmeH8+61oMB9UHz8WDT/79+/YTL/3w4SsP7/7z7HuXv/5+/Zkzv351//nvJvrWlbv+l+lTd84++ennZ+7Nfr/z
5e1XJw9+/Ojib5/99M29vy6bPx+effkFdevjF59+PX4xGX3b5z0OfVyBXqpgp23yPGHLBtl66yApFzQGWXzmJuhAImLmMkMW4EQSXougvVFG
G2ORmxKsdTxqHC71aJYyXGKaJsLMSbegab/DFHjljQUPNJnJfkc11OMuTHNoc1VvswFEicYW71MxWcYA2jqJykUjpY3FRJO1DyYmEFxErosm
u5JSFM4DWOOilQU4+XqVOXiUURuHsajoYxaKBnqRDVL0NmkPxgcBXPFQAAIHYYoU0lCIHHmwMlkvhMyGEChonecGU8gUW8WUQCvvOYTk0Rfn
hFcmBQBZUgbKsrG14N24y8e78/Pu2uh6T5Z6s0nbhzjtjS6w+vxofEmeACXhEfHG3cEWOwrQC+2psD1iAxmjS0FILg2U4tC44gGd8UY4ngEF
ROqeEKFiURsFVD6hGqQrltsoeiAojA4h6QypCCMjJm0JCBtpAFr6bAidgoBQVPIqyJxzwIwEq4+pZPBJU5gdbA/o0jkvdKbhgEgyCO2KyqCF
Tw6041roZarcaLFUnNmKn3zMaC01K+xEJ4iyi5Ppqc6oFZ0AuaKTfNVOyVWdlnCq69ow2cd2wd/x5H2k8urdpqHX6OhyvzktDdPH+016DgYB
lEhA3MxJJe6lVSCDTkWmaAOGMCSmoRTZSSkS54DJe+VUSYI45jyRyQ77R2Q0Te3Nw46ZR6/GrAtttwBJcGertbXR9lb1H4digXg=
"""

# Nothing listens at this port, because the server also runs without Redis and without a collector of traces.
NOWHERE = "127.0.0.1:9"
SERVED_WITH = {
    "otel": ("--otel-endpoint", f"http://{NOWHERE}"),
    "mcp": ("--mcp-allow-url", "127.0.0.1"),
    "redis": ("--limits-url", f"redis://{NOWHERE}"),
}
RUN_WITH = {
    "documents": (
        "-c",
        "import docx2python, odfdo, pptx, python_calamine, striprtf; "
        "from openai_cpu_server.reader.documents.read import document_parts as read; "
        "assert read(b'<!doctype html><b>Hi</b>', most_chars=99).parts == ('**Hi**',)",
    ),
    "sound": ("-c", "import av; assert 'amrnb' in av.codecs_available"),
    "heic": ("-c", "import pi_heif; pi_heif.register_heif_opener()"),
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
            text = fetch(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 8})["choices"][0][
                "text"
            ]
            report(f"answers {text!r}", started)
            read_encrypted_pdf(address)
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


def read_encrypted_pdf(address: str) -> None:
    data = zlib.decompress(base64.b64decode(ENCRYPTED_PDF))
    file = {"file_data": base64.b64encode(data).decode(), "filename": "secret.pdf"}
    message = {"role": "user", "content": [{"type": "file", "file": file}]}
    tokens = fetch(f"{address}/tokenize", {"messages": [message]})["tokens"]
    prompt = fetch(f"{address}/detokenize", {"tokens": tokens})["prompt"]
    assert "The key is green." in prompt, prompt


def commands() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text()
        for kind, block in re.findall(r"^```(console|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            prompt = r"\$ " if kind == "console" else ""
            for command in re.findall(rf"^{prompt}((?:.*\\\n)*.+)$", block, re.MULTILINE):
                yield page.name, command


def reason_against(command: str) -> str | None:
    return next((reason for pattern, reason in EXCLUDED if re.search(pattern, command)), None)


def run_manual(python: Path, address: str, place: Path) -> None:
    prepare(place)
    num_run = 0
    for page, command in commands():
        reason = reason_against(command)
        if reason is None:
            run_command(page, command, python, address, place)
            num_run += 1
        else:
            print(f"check_install: {page}: not run ({reason}): {command.splitlines()[0][:60]}")
    assert num_run >= 15, "the manual's commands are no longer found"


def prepare(place: Path) -> None:
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "model_assets").symlink_to(ROOT / "model_assets")
    (place / "models").mkdir()
    shutil.copy(ROOT / "model_assets/demo.gguf", place / "models")


def run_command(page: str, command: str, python: Path, address: str, place: Path) -> None:
    filled_in = re.sub(r"(http://)?(127\.0\.0\.1|localhost|HOST):8000", address, command)
    for text, to in FILLED_IN.items():
        filled_in = filled_in.replace(text, to)
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    if SERVES.match(filled_in):
        start_and_stop(page, re.sub(r"--port \d+", "", filled_in), environment, place)
        return
    done = subprocess.run(
        ["bash", "-c", filled_in],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != EXPECTED_STATUS.get(command, 0):
        raise SystemExit(f"{page}: `{filled_in}` ended with {done.returncode}:\n{done.stdout[-2000:]}")


def start_and_stop(page: str, command: str, environment: dict[str, str], place: Path) -> None:
    """Start a server as the manual does, at a free port, until it listens."""
    line = f"exec {command.partition('#')[0].rstrip(' &')} --port 0 --calibrate never --jobs-db none"
    log = []
    command_line = ["bash", "-c", line]
    with subprocess.Popen(
        command_line, cwd=place, env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        for text in server.stderr:
            log.append(text)
            if "listening on" in text:
                break
        server.terminate()
        server.communicate()
    if not any("listening on" in text for text in log):
        raise SystemExit(f"{page}: `{line}` does not serve:\n{''.join(log)[-2000:]}")


def try_extra(extra: str, user: Path, folder: Path) -> None:
    """Install into a copy of the user's environment, made of links because pip only replaces files."""
    shutil.copytree(user.parent.parent, folder, symlinks=True, copy_function=os.link)
    python = folder / "bin/python"
    if extra in MODELS:  # as in the manual: the package's dependencies are for other programs
        project = (ROOT / "pyproject.toml").read_text()
        pip(python, "--no-deps", *re.findall(rf'^{extra} = \["(.*)"\]', project, re.MULTILINE))
        with serving(python, "--model", extra) as address:
            try_model(extra, address)
    else:
        pip(python, f"openai-cpu-server[{extra}]")
    if extra in SERVED_WITH:
        with serving(python, "--model", "demo", *SERVED_WITH[extra]) as address:
            fetch(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 2})
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
        fetch(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 2})


if __name__ == "__main__":
    main()
