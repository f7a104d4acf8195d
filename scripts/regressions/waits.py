"""*waits*: times of one client's schema, chat and picture while another client sends the heaviest pieces
of one kind without pause; and delays of `/health` meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
from bench.media import picture_part, sound_part, uri
from bench.models import made_projector
from bench.servers import OUR_COMMAND, ServerSpec, running
from rich.console import Console
from rich.table import Table

from openai_cpu_server.model_source.package import PACKAGED

_CLIENTS = ("heavy", "light")
_AT_ONCE = 4
_HEAD_START_S = 2.0
_MADE = 12
"""Heavy requests made before; compressing 40 megapixels would take the server's cores."""
_LOOK_S = 0.02
_TIMEOUT_S = 600.0
_WIDTH = 160
_SEES = "gemma3"
"""Kind of encoder, as `made_projector` names it."""

T = TypeVar("T")
_SPAWN = multiprocessing.get_context("spawn")
Body = tuple[str, dict[str, object]]
Sent = tuple[str, bytes]
"""Path and JSON."""
MakeBody = Callable[[int], Body]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10, help="requests of each kind by the light client")


def run(options: argparse.Namespace) -> int:
    heads = ("heavy client sends", *(f"{kind}, s" for kind in LIGHT), "/health late, ms", "heavy client gets")
    table, model = Table(*heads), PACKAGED["smollm2"].path()
    for encoder, rows in _BY_ENCODER.items():
        with _server(model, made_projector(encoder, "tiny", model)) as url:
            light = {kind: body for kind, body in LIGHT.items() if kind != "picture" or encoder == _SEES}
            _wait_s(url, _CLIENTS[1], _schema(next(_salts), 1))  # the first one reads the vocabulary
            for name in rows:
                table.add_row(*_row(url, encoder, name, light, options.requests))
    Console(width=_WIDTH).print(table)
    return 0


@contextlib.contextmanager
def _server(model: Path, projector: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in _CLIENTS}
        keys.write_text("".join(f'[keys.{name}]\nsha256 = "{each}"\n' for name, each in digests.items()))
        options = ("--model", f"smollm2={model}", "--mmproj", str(projector), "--api-keys", str(keys))
        command = (*OUR_COMMAND, *options, "--port", "{port}", "--calibrate", "never", "--jobs-db", "none")
        with running(ServerSpec("ours", command, "/ready"), []) as server:
            yield f"http://127.0.0.1:{server.port}"


def _row(url: str, encoder: str, name: str, light: dict[str, MakeBody], num: int) -> list[str]:
    heavy = _BY_ENCODER[encoder][name]
    made = [] if heavy is None else [_sent(heavy(number)) for number in range(_MADE)]
    with _process(_flood, url, encoder, name, made) as statuses, _process(_health_delays_ms, url) as late_ms:
        time.sleep(_HEAD_START_S)
        waits = {
            kind: [_wait_s(url, _CLIENTS[1], body(number)) for number in range(num)]
            for kind, body in light.items()
        }
    shown = [f"{np.median(each):.2f} (worst {max(each):.2f})" for each in waits.values()]
    shown += [""] * (len(LIGHT) - len(light))
    counts = ", ".join(f"{statuses.count(one)} x {one}" for one in sorted(set(statuses)))
    return [name, *shown, f"{np.median(late_ms):.0f} (worst {max(late_ms):.0f})", counts]


def _wait_s(url: str, key: str, body: Body) -> float:
    start_s = time.monotonic()
    answer = _answer(url, key, _sent(body))
    assert answer.status_code == 200, answer.text
    return time.monotonic() - start_s


def _sent(body: Body) -> Sent:
    return body[0], json.dumps(body[1]).encode()


def _answer(url: str, key: str, sent: Sent) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx.post(url + sent[0], content=sent[1], headers=headers, timeout=_TIMEOUT_S)


@contextlib.contextmanager
def _process(act: Callable[..., list[T]], *arguments: object) -> Iterator[list[T]]:
    """Yield a list that has, at the end, the result of its own process. In one process, writing 20 MB of JSON
    would delay all requests."""
    results: list[T] = []
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_run, args=(theirs, act, *arguments))
    process.start()
    theirs.close()
    try:
        yield results
    finally:
        with contextlib.suppress(BrokenPipeError):  # it has nothing to do and is gone
            ours.send(None)
        results += ours.recv()
        process.join()


def _run(pipe: Connection, act: Callable[..., list[T]], *arguments: object) -> None:
    pipe.send(act(pipe.poll, *arguments))


def _flood(is_over: Callable[[], bool], url: str, encoder: str, name: str, made: list[Sent]) -> list[int]:
    """Return the status of each answer."""
    heavy, numbers, statuses = _BY_ENCODER[encoder][name], itertools.count(len(made)), list[int]()
    ready = iter(made)
    if heavy is None:
        return statuses

    def send() -> None:
        while not is_over():
            sent = next(ready, None) or _sent(heavy(next(numbers)))
            statuses.append(_answer(url, _CLIENTS[0], sent).status_code)

    threads = [threading.Thread(target=send) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def _health_delays_ms(is_over: Callable[[], bool], url: str) -> list[float]:
    delays_ms = list[float]()
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        while not is_over():
            start_s = time.monotonic()
            client.get("/health")
            delays_ms.append(1000 * (time.monotonic() - start_s))
            time.sleep(_LOOK_S)
    return delays_ms


def _chat(content: object, **more: object) -> Body:
    return "/v1/chat/completions", {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1,
        **more,
    }


def _schema(number: int, num_properties: int) -> Body:
    properties = {f"p{number}_{n}": {"type": "string" if n % 2 else "integer"} for n in range(num_properties)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _chat("Hello", response_format=form)


def _document(number: int) -> Body:
    """Return a PDF of one page with 400,000 operators."""
    from pypdf import PdfWriter
    from pypdf.generic import DictionaryObject, NameObject, StreamObject

    writer = PdfWriter()
    page, content = writer.add_blank_page(100, 100), StreamObject()
    content._data = b"BT /F1 12 Tf\n" + b"(Hello hello hello) Tj\n" * 400_000 + b"ET %d" % number
    page[NameObject("/Contents")] = writer._add_object(content.flate_encode())
    names = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(name): NameObject(value) for name, value in names.items()})
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    file = io.BytesIO()
    writer.write(file)
    data = {"filename": "a.pdf", "file_data": uri("application/pdf", file.getvalue())}
    return _chat([{"type": "file", "file": data}])


def _lark(number: int) -> Body:
    """Terminals that double 40 times."""
    terminals = "\n".join(f"A{n}: A{n - 1} A{n - 1}" for n in range(1, 41))
    definition = f'start: A40\nA0: "a{number}"\n{terminals}'
    form = {"type": "grammar", "syntax": "lark", "definition": definition}
    tools = [{"type": "custom", "name": "x", "format": form}]
    return "/v1/responses", {
        "input": "Hello",
        "max_output_tokens": 16,
        "tools": tools,
        "tool_choice": "required",
    }


def _template(number: int) -> Body:
    """A value that doubles 26 times."""
    text = f"{{{{$x := print `{number}`}}}}" + "{{$x = print $x $x}}" * 26 + "{{.Prompt}}"
    return "/api/generate", {"model": "smollm2", "prompt": "Hello", "stream": False, "template": text}


_salts = itertools.count(1_000_000)
"""Make all requests of the light client new."""
LIGHT: dict[str, MakeBody] = {
    "schema of 30 properties": lambda number: _schema(next(_salts), 30),
    "chat": lambda number: _chat(f"Hello {next(_salts)}"),
    "picture": lambda number: _chat([picture_part(64, next(_salts))]),
}
_BY_ENCODER: dict[str, dict[str, MakeBody | None]] = {
    _SEES: {
        "nothing": None,
        "documents": _document,
        "Lark grammars": _lark,
        "pictures of 40 megapixels": lambda number: _chat([picture_part(6324, number, squares=8)]),
        "schemas of 60 kB": lambda number: _schema(number, 1800),
        "templates": _template,
    },
    "ultravox": {"sounds of 20 MB": lambda number: _chat([sound_part(625, number)])},
}
