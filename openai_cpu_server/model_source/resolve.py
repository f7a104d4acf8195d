"""Finds the file that a value of `--model`, `--mmproj` or `--adapter` means, and the model that is served
where nobody names one."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import importlib.util
import logging
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.config.folders import expanded, require_utf8, user_cache_dir
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.errors import AdapterFailed, AdapterNotAllowed, StartupError
from openai_cpu_server.llama.gguf.encoders import ProjectorFacts
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import file_digest
from openai_cpu_server.model_source.aliases import ALIASES, without_tag
from openai_cpu_server.model_source.names import (
    PREFIX,
    HubName,
    models,
    parse_hub_name,
    preferred_projector,
    projectors,
    words,
)
from openai_cpu_server.model_source.package import PACKAGED

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]


class DemoFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The places to look in, in this order.
    The defaults are an installed package, then a checkout of its repository."""

    models: tuple[Path, ...] = (
        _PACKAGE / "model_assets" / "demo.gguf",
        _PACKAGE.parent / "model_assets" / "demo.gguf",
    )
    generator: Path = _PACKAGE.parent / "scripts" / "make_model.py"
    cache: Path = msgspec.field(default_factory=user_cache_dir)
    """The folder for the random model."""

    def path(self) -> Path:
        """The model's file. Raises StartupError."""
        for model in self.models:
            if model.is_file():
                return model
        if not self.generator.is_file():
            raise StartupError("this installation has no demo model: name another with --model")
        return self._random_model()

    def _random_model(self) -> Path:
        path = self.cache / f"random-{self._generator_digest()}.gguf"
        if not path.is_file():
            self._make(path)
        logger.warning("there is no demo model here: %s has random weights and says nothing sensible", path)
        return path

    def _make(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / path.name
                _run(self.generator, made)
                made.replace(path)
        except OSError as error:
            raise StartupError(f"cannot make a random model in {path.parent}: {error.strerror}") from None
        except KeyboardInterrupt:
            raise StartupError("interrupted while making a random model") from None

    def _generator_digest(self) -> str:
        """A digest of the generator: if it changes, the model is made anew."""
        digest = hashlib.sha256()
        for source in sorted(self.generator.parent.rglob("*.py")):
            digest.update(source.read_bytes())
        return digest.hexdigest()[:12]


def _run(generator: Path, output: Path) -> None:
    command = [sys.executable, str(generator), "--shape", "tiny", "--quant", "f16", "--output", str(output)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise StartupError(f"cannot make a random model: {lines[-1]}")


_DEMO = "demo"
_DEFAULT = "smollm2"
_FETCH = "openai_cpu_server.model_source.hub:fetch"
_FIND_CACHED = "openai_cpu_server.model_source.hub:find_cached"
"""These functions are imported when they are called:
most starts need no hub, and its library takes a quarter of a start."""


class FoundModel(msgspec.Struct, frozen=True):
    name: str
    """What the API calls the model, unless the user says otherwise."""
    path: Path
    hub: HubName | None = None
    """Where on the hub it is; None: it is not from there."""


def model_to_serve(name: str | None) -> FoundModel:
    """The model of that name; None: nobody has named one. Raises StartupError with one line."""
    if name is None:
        return _default_model()
    name = without_tag(name)
    path = resolve_model(name)
    is_file = "/" in name or ":" in name or name.endswith(".gguf")
    return FoundModel(path.stem if is_file else name, path, _hub_name(name))


def _hub_name(name: str) -> HubName | None:
    """What a name of the hub or an alias of one means there."""
    return hub_name(name) if name not in PACKAGED else None


def hub_name(name: str) -> HubName | None:
    """The same, also of what packages have as well. None: the hub has no part in it. Raises StartupError."""
    if name.startswith(PREFIX):
        return parse_hub_name(name)
    source = ALIASES.get(without_tag(name))
    return parse_hub_name(source) if source is not None else None


def _default_model() -> FoundModel:
    """The packaged model, else the demo model: whoever names none is not made to wait for a hub."""
    try:
        return FoundModel(_DEFAULT, PACKAGED[_DEFAULT].path())
    except StartupError as error:
        logger.warning("serving the demo model, which is a toy, in place of %s: %s", _DEFAULT, error)
        return FoundModel(_DEMO, resolve_model(_DEMO))


def resolve_model(name: str, *, demo: DemoFiles | None = None) -> Path:
    """The GGUF file that the name means. It may be downloaded first. Raises StartupError with one line.

    `demo` and aliases come before files of the same name (write `./demo`), `hf:` before everything.
    """
    return _with_utf8_name(_resolved(name, _FETCH, demo or DemoFiles()))


def local_model(name: str) -> Path:
    """The same file, but nothing is downloaded, for commands from which nobody expects gigabytes."""
    return _with_utf8_name(_resolved(name, _FIND_CACHED, DemoFiles()))


def _with_utf8_name(path: Path) -> Path:
    require_utf8(path)
    return path


def _resolved(name: str, on_hub: str, demo: DemoFiles) -> Path:
    name = without_tag(name)
    if name.startswith(PREFIX):
        return _at_hub(on_hub, parse_hub_name(name))
    if name == _DEMO:
        return demo.path()
    if name in PACKAGED:
        return _packaged(name, on_hub)
    if name in ALIASES:
        return _at_hub(on_hub, parse_hub_name(ALIASES[name]))
    return _local_file(name)


def _packaged(alias: str, on_hub: str) -> Path:
    """The file of the alias' package, or else the hub's, if that has it."""
    try:
        return PACKAGED[alias].path()
    except StartupError as error:
        if alias not in ALIASES:
            raise
        missing = error
    name = parse_hub_name(ALIASES[alias])
    try:
        path = _at_hub(on_hub, name)
    except StartupError as error:
        raise StartupError(f"{missing}; {error}") from None
    logger.info("%s; taking %s in its place", missing, name)
    return path


def _at_hub(find: str, name: HubName) -> Path:
    path: Path = pkgutil.resolve_name(find)(name)
    return path


def _local_file(name: str) -> Path:
    try:
        path = expanded(name)
        if path.is_file():
            return path
        is_folder = bool(name) and path.is_dir()
    except OSError as error:  # no access, too long a name
        raise StartupError(f"cannot look for {name}: {error}") from None
    if is_folder:
        raise StartupError(f"{name} is a folder, not a GGUF file")
    if any(separator in name for separator in (os.sep, os.altsep) if separator) or path.suffix == ".gguf":
        raise StartupError(f"there is no file {name}{_hub_hint(name)}")
    raise StartupError(_unknown(name))


def _hub_hint(name: str) -> str:
    """A hint for `OWNER/REPO`, which is a likely slip."""
    return f" (a repository on the hub is {PREFIX}{name})" if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else ""


def _unknown(name: str) -> str:
    known = sorted({*ALIASES, *PACKAGED, _DEMO})
    close = difflib.get_close_matches(name.lower(), known, n=2)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return (
        f"unknown model {name!r}{hint}: PATH, {PREFIX}OWNER/REPO[/FILE], {_DEMO}, or a name that "
        "`openai-cpu-server models` lists"
    )


_FETCH_PROJECTOR = "openai_cpu_server.model_source.hub:fetch_projector"


def projector_of(
    model: Path,
    asked: str,
    hub: HubName | None = None,
    *,
    find: Callable[[str], Path] = resolve_model,
) -> Path | None:
    """What a model sees and hears with; None: it takes text only. It may be downloaded first.

    `asked`: `off`, a name as `--model` takes it, or `auto`: the file beside the model's whose rows are as
    wide as the model's, else that of the model's repository. `hub`: where the model came from; None: not from
    the hub. `find`: what finds a file by its name. Raises StartupError for a file that was asked for and is
    not there, or that llama-cpp-python cannot take.
    """
    if asked == "off":
        return None
    if asked != "auto":
        try:
            path = find(asked)
        except StartupError as error:
            raise StartupError(f"--mmproj: {error}") from None
        if not _takes_media():
            raise StartupError(f"--mmproj: {_NO_MTMD}")
        return path
    found = projector_beside(model)
    if (found is not None or hub is not None) and not _takes_media():
        logger.warning("%s: serving text only, if %s takes anything else at all", _NO_MTMD, model.name)
        return None
    return found or (_of_repository(model, hub) if hub is not None else None)


_NO_MTMD = "llama-cpp-python was built without libmtmd, which takes pictures and sounds"


def _takes_media() -> bool:
    """Whether llama-cpp-python came with libmtmd, seen without loading it. A build may leave it out."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return True  # whoever loads it says what is wrong
    return any(Path(spec.origin).with_name("lib").glob("*mtmd.*"))


def projector_beside(model: Path) -> Path | None:
    """The projector in the model's folder that fits it, of several of one kind the best stored. Where other
    models lie there too, its name must say nothing that the model's does not: rows are as wide in many."""
    beside = {path.name: path for path in model.parent.glob("*.gguf") if path.is_file()}
    found = projectors(beside)
    if len({words(name) for name in models(beside)}) > 1:
        found = [name for name in found if words(name) and {*words(name)} <= {*words(model.name)}]
    fitting = _fitting(model, [beside[name] for name in found])
    chosen = preferred_projector([path.name for path in fitting])
    return None if chosen is None else beside[chosen]


def _of_repository(model: Path, hub: HubName) -> Path | None:
    """Nothing but text is served if the hub cannot be asked: the model itself is here."""
    try:
        path: Path | None = pkgutil.resolve_name(_FETCH_PROJECTOR)(hub)
    except StartupError as error:
        logger.warning("%s: serving text only, if %s takes anything else at all", error, hub)
        return None
    return path if path is not None and _fitting(model, [path]) else None


def _fitting(model: Path, found: Sequence[Path]) -> list[Path]:
    """Those whose rows are as wide as the model's. A file that cannot be read fits nothing."""
    if not found:
        return []
    try:
        header = GgufHeader(model)
    except StartupError:
        return []  # whoever loads it says so
    width = header.get_int(header.for_architecture("embedding_length"))
    return [path for path in found if _rows_width(path) == width]


def _rows_width(projector: Path) -> int | None:
    try:
        return ProjectorFacts.of(GgufHeader(projector)).rows_width
    except StartupError:
        return None


def hold(paths: Iterable[Path]) -> Sequence[BinaryIO]:
    """Lets who would remove these files know that they are in use, until what this returns is closed or the
    process ends. On a disk where nothing can be held nothing is."""
    held = []
    for path in paths:
        try:
            file = path.open("rb")
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            file.close()
        else:
            held.append(file)
    return held


_HUB_CACHE = "openai_cpu_server.model_source.hub:cache_folder"
"""It is imported when it is called: the hub's library takes a quarter of a start."""


def hub_cache() -> Path:
    """Where what is downloaded lies."""
    folder: Path = pkgutil.resolve_name(_HUB_CACHE)()
    return folder


class AdapterFiles:
    """Its methods block: they read whole files, and may download some."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: what clients name must lie in it; None: clients may name nothing."""
        self._folder = folder

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where what clients name lies: the folder, and the hub's cache."""
        if self._folder is None:
            return ()
        return (self._folder.resolve(), hub_cache())

    def of_operator(self, source: AdapterSource) -> Adapter:
        """What whoever starts the server names may lie anywhere. Raises `StartupError`."""
        try:
            return _adapter(source, resolve_model(source.path))
        except AdapterFailed as error:
            raise StartupError(str(error)) from None

    def of_client(self, source: AdapterSource) -> Adapter:
        """What a client names. Raises `AdapterNotAllowed`, `AdapterFailed`.

        A path outside of the folder is refused in the same words whether there is a file or not: nobody
        learns so what lies on this machine.
        """
        if self._folder is None:
            raise AdapterNotAllowed(
                "This server loads no adapters over the API; start it with --adapter-dir DIR."
            )
        if not source.path.startswith(PREFIX):
            return _adapter(source, self._within(self._folder, source.path))
        try:
            return _adapter(source, resolve_model(source.path))
        except StartupError as error:
            raise AdapterFailed(f"{error}.") from None

    def _within(self, folder: Path, name: str) -> Path:
        """The file in the folder, links followed."""
        root = folder.resolve()
        try:
            path = (root / name).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError):  # too long a name, a loop of links, a zero byte
            raise AdapterNotAllowed(_OUTSIDE) from None
        if not path.is_relative_to(root):
            raise AdapterNotAllowed(_OUTSIDE)
        if not is_file:
            raise AdapterFailed(f"There is no file {name} in the server's --adapter-dir.")
        return path


_OUTSIDE = "The path leads out of the server's --adapter-dir."


def _adapter(source: AdapterSource, path: Path) -> Adapter:
    try:
        require_utf8(path)
    except StartupError as error:
        raise AdapterFailed(f"{error}.") from None
    return Adapter(name=source.name, path=str(path), digest=file_digest(path), scale=source.scale)
