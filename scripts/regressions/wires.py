"""*wires*: the bytes of some 200 answers of all families of routes, recorded in a file or compared."""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import re
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import httpx
from bench.servers import OUR_COMMAND, ServerSpec, running

_TIMEOUT_S = 120.0
_HEADERS = ("content-type", "retry-after", "cache-control", "allow", "content-disposition")
_SENT = {"content-type": "application/json"}
_SHOWN_LINES, _SHOWN_CHARS = 40, 400
_ENDS = ("completed", "failed", "expired", "cancelled")

_ID = re.compile(
    r"\b(?:chatcmpl|cmpl|resp|msg|rs|fc|call|toolu|file|batch|batch_req|conv|req|ctc|score|rerank|embd|classify|gen|cmp)"
    r"[-_][0-9A-Za-z_-]{6,}|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
)
_MEASURED = re.compile(
    r'("(?:created|[a-z_]*(?:_at|_ms|_s|duration|per_second|_ts|_time|_bytes)|uptime|pid|threads_computing|draft_n\w*|t_\w+)":\s*|they\stake\s)'
    r'(?:-?\d[\d.eE+-]*|"2\d{3}-[^"]*")'
)

_REQUESTS = Path(__file__).with_suffix(".jsonl")
"""Requests in lines: `{NAME}` in a path or body is an id of an earlier answer to `NAME`."""
_LONG = {"words": "word " * 5000, "letters": "x " * 3000}
_MARK = "\n==== "


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="is written if it does not exist, else compared")


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        models = ("--model", "demo", "--model", "minilm")
        stored = ("--jobs-db", f"{folder}/jobs.db", "--calibrate", "never", "--speculation", "off")
        command = (*OUR_COMMAND, *models, *stored, "--port", "{port}")
        with running(ServerSpec("ours", command, "/ready"), []) as server:
            found = _recorded(f"http://127.0.0.1:{server.port}")
    if not options.file.exists():
        options.file.write_text(found, encoding="utf-8")
        print(f"{found.count(_MARK)} answers are recorded")
        return 0
    expected = options.file.read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "recorded", "now", lineterm="", n=1
    )
    shown = list(itertools.islice(lines, _SHOWN_LINES))
    print("\n".join(line[:_SHOWN_CHARS] for line in shown) or f"{found.count(_MARK)} answers are equal")
    return 1 if shown else 0


def _recorded(url: str) -> str:
    parts, ids = [""], _Ids()
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        for request in map(json.loads, _REQUESTS.read_text("utf-8").splitlines()):
            name, method, path = request["name"], request["method"], request["path"]
            url_path = ids.filled(path)
            if "file" in request:
                file = request["file"], request["text"].encode()
                answer = client.post(url_path, files={"file": file}, data={"purpose": "batch"})
            else:
                content = ids.filled(json.dumps(request["body"])) if "body" in request else request["text"]
                answer = client.request(method, url_path, content=content.encode(), headers=_SENT)
            ids.learn(name, answer.text)
            head = "".join(f"{key}: {answer.headers[key]}\n" for key in _HEADERS if key in answer.headers)
            text = _MEASURED.sub(r"\g<1>0", ids.normalised(head + "\n" + answer.text))
            parts.append(f"{name} {method} {path}\n{answer.status_code}\n{text}\n")
            if name == "batch":
                while client.get(ids.filled("/v1/batches/{batch}")).json()["status"] not in _ENDS:
                    time.sleep(0.1)
    return _MARK.join(parts)


class _Ids:
    """Numbers ids in order of appearance."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count(1).__next__)
        self._by_name = dict(_LONG)

    def learn(self, name: str, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            return
        if isinstance(found, dict) and isinstance(found.get("id"), str):
            self._by_name[name] = found["id"]
            if found.get("output_file_id"):
                self._by_name["output_file"] = found["output_file_id"]

    def filled(self, text: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda match: self._by_name.get(match[1], match[0]), text)

    def normalised(self, text: str) -> str:
        return _ID.sub(lambda match: f"<id {self._numbers[match[0]]}>", text)
