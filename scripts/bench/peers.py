"""Alternatives to our server: where they are on this machine, and their commands. Each gets as many
threads as our server, except llama-server with its defaults, and room for 16 requests of the workload's
length."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.contestants import Contestant, Room
from bench.dialect import Dialect, SchemaField
from bench.peer_setup import built_llama_server, example_server, openvino_python, peer_python
from bench.servers import ServerSpec, environment
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model.vocabulary import Vocabulary

SLOTS = 16
_CONTEXT_STEP = 256
_TEXT_IS_LONGER = 1.15
_STATE_KEYS = ("ssm.state_size", "shortconv.l_cache", "wkv.head_size")
"""Keys of models with a recurrent state, of which llama-server restores checkpoints only."""
KEYS = ("llama-server", "llama-server-best", "openvino", "llama-cpp-server", "example-server")
_OPENVINO = "OpenVINO GenAI"
_OPENVINO_ADAPTER = Path(__file__).with_name("openvino_server.py")
_CHECK_S = 120


class PeerUnusable(Exception):
    """Raised if the named llama-server does not run."""


@dataclass(frozen=True)
class PeerPaths:
    """Paths are None for peers that are not on this machine."""

    llama_server: Path | None
    python: Path | None
    example: Path | None
    openvino: Path | None = None
    """Interpreter that has OpenVINO GenAI."""

    @classmethod
    def found(cls, llama_server: Path | None) -> PeerPaths:
        """Return llama-server as given or from PATH, and peers from `--set-up-peers`. Raises PeerUnusable."""
        if llama_server is not None:
            _check(llama_server)
        on_path = shutil.which("llama-server")
        python = _if_there(peer_python())
        return cls(
            llama_server=llama_server or (Path(on_path) if on_path else _if_there(built_llama_server())),
            python=python,
            example=_if_there(example_server()) if python else None,
            openvino=_if_there(openvino_python()),
        )


def absent(wanted: Collection[str], here: Collection[Contestant]) -> list[str]:
    return [key for key in KEYS if key in wanted and key not in {who.key for who in here}]


def best_flags(model: Path) -> str:
    """Return flags that make llama-server faster with most models and restore most of the prompts.

    Repacked weights are its default, and measured beside: with MXFP4 they are faster. A state has a
    checkpoint as many tokens before the end of a prompt as are computed at once (512, or `-ub`), and one 4
    tokens before it. Windows need nothing, because a slot keeps their cells for that many more tokens.
    """
    header = GgufHeader(model)
    has_state = any(header.has(header.for_architecture(key)) for key in _STATE_KEYS)
    return "--no-repack -ub 64" if has_state else "--no-repack"


def peers(model: Path, paths: PeerPaths, flags: str) -> list[Contestant]:
    """`flags`: llama-server's best."""
    return list(_peers(Words(model), paths, tuple(flags.split())))


def _peers(words: Words, paths: PeerPaths, best_flags: tuple[str, ...]) -> Iterator[Contestant]:
    if paths.llama_server is not None:
        threads = str(Machine().num_threads())
        for key, label, flags in (
            ("llama-server", "llama-server", ()),
            (
                "llama-server-best",
                f"llama-server {' '.join(best_flags) or 'with our threads'}",
                ("-t", threads, "-tb", threads, *best_flags),
            ),
        ):
            start = _LlamaServer(paths.llama_server, label, flags)
            yield Contestant(key, label, start, does_json=True, takes_pictures=True, tells_cached=True)
    if paths.openvino is not None:
        yield Contestant("openvino", _OPENVINO, _OpenVino(paths.openvino))
    if paths.python is not None:
        yield Contestant(
            "llama-cpp-server", "llama_cpp.server", _LlamaCppServer(paths.python, words), at_once=1
        )
    if paths.python is not None and paths.example is not None:
        yield Contestant(
            "example-server", "example server", _ExampleServer(paths.python, paths.example, words)
        )


class Words:
    """Converts tokens to text of about as many tokens, for servers that take no ids."""

    def __init__(self, model: Path) -> None:
        self._model = model

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.open(self._model)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        return tuple(self._vocabulary.end_tokens)

    def text(self, tokens: tuple[int, ...]) -> str:
        return self._vocabulary.decode(list(tokens))


@dataclass(frozen=True)
class _LlamaServer:
    path: Path
    label: str
    flags: tuple[str, ...]

    def __call__(self, model: Path, room: Room) -> ServerSpec:
        command = (str(self.path), "-m", str(model), "--host", "127.0.0.1", "--port", "{port}")
        sized = ("-np", str(SLOTS), "-c", str(SLOTS * _context(room)))
        dialect = Dialect(schema=SchemaField.JSON_SCHEMA)
        return ServerSpec(self.label, (*command, *sized, *self.flags), ready="/health", dialect=dialect)


@dataclass(frozen=True)
class _OpenVino:
    """OpenVINO GenAI's continuous batching, with its defaults, behind an adapter that streams."""

    python: Path

    def __call__(self, model: Path, room: Room) -> ServerSpec:
        given = ("--model", str(model), "--port", "{port}", "--threads", str(Machine().num_threads()))
        room_given = ("--cache-tokens", str(SLOTS * _context(room)))
        command = (str(self.python), str(_OPENVINO_ADAPTER), *given, *room_given)
        return ServerSpec(_OPENVINO, command, ready="/health")


@dataclass(frozen=True)
class _LlamaCppServer:
    """Serves one request at a time. A new request would cut off a running one, which is switched off."""

    python: Path
    words: Words

    def __call__(self, model: Path, room: Room) -> ServerSpec:
        where = ("--model", str(model), "--host", "127.0.0.1", "--port", "{port}")
        sized = ("--n_ctx", str(int(_TEXT_IS_LONGER * _context(room))))
        threads = ("--n_threads", str(Machine().num_threads()), "--interrupt_requests", "false")
        command = (str(self.python), "-m", "llama_cpp.server", *where, *sized, *threads)
        dialect = _dialect(self.words, takes_tokens=False)
        return ServerSpec("llama_cpp.server", command, ready="/v1/models", dialect=dialect)


@dataclass(frozen=True)
class _ExampleServer:
    python: Path
    path: Path
    words: Words

    def __call__(self, model: Path, room: Room) -> ServerSpec:
        threads = Machine().num_threads()
        options = {
            "server": {"host": "127.0.0.1", "port": "{port}"},
            "model": {
                "path": str(model),
                "n_ctx": SLOTS * _context(room),
                "n_seq_max": SLOTS,
                "threads": threads,
                "threads_batch": threads,
                "store_logits": False,
            },
        }
        return ServerSpec(
            "example server",
            (str(self.python), str(self.path), "--config-file", "{file}"),
            ready="/healthz",
            file=json.dumps(options).replace('"{port}"', "{port}"),
            dialect=_dialect(self.words, takes_tokens=True),
        )


def _dialect(words: Words, *, takes_tokens: bool) -> Dialect:
    """The one server that takes tokens is the example, which knows OpenAI's parameters only."""
    return Dialect(
        as_text=None if takes_tokens else words.text,
        end_tokens=words.end_tokens,
        tells_usage=False,
        schema=SchemaField.NOWHERE,
        knows_llama_sampling=not takes_tokens,
    )


def _context(room: Room) -> int:
    return -(-(room.request_tokens + 1) // _CONTEXT_STEP) * _CONTEXT_STEP


def _check(llama_server: Path) -> None:
    command = (llama_server, "--version")
    try:
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=_CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnusable(f"--llama-server: {error}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise PeerUnusable(f"--llama-server: `{llama_server} --version` fails: {said or done.returncode}")


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None
