"""Files that `--model`, `--mmproj` and `--adapter` name."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

import msgspec

from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.config.folders import expanded_path, foreign_settings, require_utf8, user_cache_dir
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.errors import AdapterFailed, AdapterNotAllowed, StartupError
from openai_cpu_server.llama.gguf.encoders import ProjectorFacts
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.heads import head_in, may_have_head, only_drafts, why_unfit
from openai_cpu_server.llama.gguf.tensors import file_digest
from openai_cpu_server.model_source.aliases import ALIASES, without_tag
from openai_cpu_server.model_source.lazy_hub import hub
from openai_cpu_server.model_source.names import (
    HUB_HOSTS,
    PREFIX,
    HubName,
    hub_page,
    model_parts,
    name_words,
    parse_hub_name,
    preferred_head,
    preferred_projector,
    projectors,
    whole_models,
)
from openai_cpu_server.model_source.package import PACKAGED

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]


class DemoFiles(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package, then a checkout."""

    models: tuple[Path, ...] = (
        _PACKAGE / "model_assets" / "demo.gguf",
        _PACKAGE.parent / "model_assets" / "demo.gguf",
    )
    generator: Path = _PACKAGE.parent / "scripts" / "make_model.py"
    cache: Path = msgspec.field(default_factory=user_cache_dir)

    def path(self) -> Path:
        for model in self.models:
            if model.is_file():
                return model
        if not self.generator.is_file():
            raise StartupError("this installation has no demo model: name another with --model")
        digest = hashlib.sha256()
        for source in sorted(self.generator.parent.rglob("*.py")):
            digest.update(source.read_bytes())
        path = self.cache / f"random-{digest.hexdigest()[:12]}.gguf"
        if not path.is_file():
            self._make(path)
        logger.warning(
            "this installation has no demo model: %s has random weights, and its answers mean nothing", path
        )
        return path

    def _make(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                output = Path(folder) / path.name
                options = ("--shape", "tiny", "--quant", "f16", "--output", str(output))
                command = [sys.executable, str(self.generator), *options]
                run = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
                if run.returncode != 0:
                    lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
                    raise StartupError(f"cannot make a random model: {lines[-1]}")
                output.replace(path)
        except OSError as error:
            raise StartupError(f"cannot make a random model in {path.parent}: {error.strerror}") from None
        except KeyboardInterrupt:
            raise StartupError("interrupted while making a random model") from None


_DEMO = "demo"
_DEFAULT = "smollm2"
T = TypeVar("T")


class FoundModel(msgspec.Struct, frozen=True):
    name: str
    """Default name in the API."""
    path: Path
    hub: HubName | None = None


def model_to_serve(name: str | None) -> FoundModel:
    """Find a model, or the default for None."""
    if name is not None:
        name = _standard_name(name)
        path = resolve_model(name)
        is_file = "/" in name or ":" in name or name.endswith(".gguf") or path.parent == Path(name)
        return FoundModel(
            path.stem if is_file else name, path, hub_name(name) if name not in PACKAGED else None
        )
    try:
        return FoundModel(_DEFAULT, PACKAGED[_DEFAULT].path())
    except StartupError as error:  # a default must not wait for a hub
        logger.warning("serving the demo model, which is a toy, instead of %s: %s", _DEFAULT, error)
        return FoundModel(_DEMO, resolve_model(_DEMO))


def _standard_name(name: str) -> str:
    """Replace pages of the hub and Ollama's tags by our names."""
    endpoint = urlsplit(foreign_settings().get("HF_ENDPOINT", "")).netloc
    return hub_page(name, [*HUB_HOSTS, *filter(None, [endpoint])]) or without_tag(name)


def hub_name(name: str) -> HubName | None:
    name = _standard_name(name)
    if name.startswith(PREFIX):
        return parse_hub_name(name)
    source = ALIASES.get(name)
    return parse_hub_name(source) if source is not None else None


def resolve_model(name: str, *, demo: DemoFiles | None = None) -> Path:
    """Download if needed. `demo` and aliases precede files of the same name (write `./demo`), and `hf:`
    precedes everything."""
    return _resolved(name, demo or DemoFiles(), downloads=True)


def local_model(name: str) -> Path:
    """Find without downloading."""
    return _resolved(name, DemoFiles(), downloads=False)


def _resolved(name: str, demo: DemoFiles, *, downloads: bool) -> Path:
    name = _standard_name(name)
    if name == _DEMO:
        path = demo.path()
    elif name in PACKAGED:
        path = _packaged(name, downloads)
    elif name.startswith(PREFIX) or name in ALIASES:
        path = _at_hub(parse_hub_name(ALIASES.get(name, name)), downloads)
    else:
        path = _local_file(name)
    require_utf8(path)
    return path


def _packaged(alias: str, downloads: bool) -> Path:
    try:
        return PACKAGED[alias].path()
    except StartupError as error:
        if alias not in ALIASES:
            raise
        missing = error
    name = parse_hub_name(ALIASES[alias])
    try:
        path = _at_hub(name, downloads)
    except StartupError as error:
        raise StartupError(f"{missing}; {error}") from None
    logger.info("%s; using %s instead", missing, name)
    return path


def _at_hub(name: HubName, downloads: bool) -> Path:
    return hub.fetch_model(name) if downloads else hub.find_cached(name)


def _local_file(name: str) -> Path:
    try:
        path = expanded_path(name)
        if path.is_file():
            return _first_part(path)
        if name and path.is_dir():
            return _only_model(path)
    except OSError as error:  # no access, too long a name
        raise StartupError(f"cannot look for {name}: {error}") from None
    if any(separator in name for separator in (os.sep, os.altsep) if separator) or path.suffix == ".gguf":
        is_like_repository = re.fullmatch(r"[\w.-]+/[\w.-]+", name)
        hint = f" (a repository on the hub is {PREFIX}{name})" if is_like_repository else ""
        raise StartupError(f"the file {name} does not exist{hint}")
    close = difflib.get_close_matches(name.lower(), sorted({*ALIASES, *PACKAGED, _DEMO}), n=2)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    raise StartupError(
        f"unknown model {name!r}{hint}: PATH, {PREFIX}OWNER/REPO[/FILE], {_DEMO}, or a name that "
        "`openai-cpu-server models` lists"
    )


_CONVERT = (
    "convert it with llama.cpp's convert_hf_to_gguf.py, or name a repository with GGUF files on the hub"
)


def _first_part(path: Path) -> Path:
    if path.suffix == ".safetensors":
        raise StartupError(f"{path} is not a GGUF file but safetensors: {_CONVERT}")
    first = path.with_name(model_parts(path.name)[0])
    if not first.is_file():
        raise StartupError(f"{path} is a later part of a model, and its first part {first.name} is missing")
    return first


def _only_model(folder: Path) -> Path:
    names = [path.name for path in folder.iterdir()]
    found = [name for name in whole_models(names) if not _only_drafts(folder / name)]
    if len(found) == 1:
        return folder / found[0]
    if found:
        raise StartupError(
            f"{folder} is a folder with {len(found)} models: name one, such as {folder / found[0]}, or serve "
            f"all with --models-dir {folder}"
        )
    has_weights = any(name.endswith(".safetensors") for name in names)
    raise StartupError(
        f"{folder} is a folder without a GGUF model"
        + (f" but with safetensors: {_CONVERT}" if has_weights else "")
    )


def projector_of(
    model: Path, source: str, on_hub: HubName | None = None, *, find: Callable[[str], Path] = resolve_model
) -> Path | None:
    """Return a projector, downloaded if needed, or None. `source`: `off`, a name, or `auto` for one of the
    model's width, beside the model or else in its repository."""
    if source == "off":
        return None
    if source != "auto":
        try:
            path = find(source)
        except StartupError as error:
            raise StartupError(f"--mmproj: {error}") from None
        if not _takes_media():
            raise StartupError(f"--mmproj: {_NO_MTMD}")
        return path
    found = projector_beside(model)
    if (found is not None or on_hub is not None) and not _takes_media():
        logger.warning("%s: serving text only, if %s takes anything else at all", _NO_MTMD, model.name)
        return None
    if found is not None or on_hub is None:
        return found
    try:
        fetched = hub.fetch_projector(on_hub)
    except StartupError as error:  # the hub is away, but the model itself is here
        logger.warning("%s: serving text only, if %s takes anything else at all", error, on_hub)
        return None
    return fetched if fetched is not None and _fitting(model, [fetched]) else None


_NO_MTMD = "llama-cpp-python was built without libmtmd, which takes pictures and sounds"


def _takes_media() -> bool:
    """Check, without loading it, for libmtmd, which a build may leave out."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return True  # loading it reports what is wrong
    return any(Path(spec.origin).with_name("lib").glob("*mtmd.*"))


def projector_beside(model: Path) -> Path | None:
    """Return the best stored projector that fits. Beside other models its name must have only words of the
    model's, because many have the same width."""
    beside = {path.name: path for path in model.parent.glob("*.gguf") if path.is_file()}
    fitting = _fitting(model, [beside[name] for name in _belonging(model, projectors(beside), beside)])
    chosen = preferred_projector([path.name for path in fitting])
    return None if chosen is None else beside[chosen]


def _belonging(model: Path, found: Sequence[str], beside: Mapping[str, Path]) -> list[str]:
    """Return files whose names have only words of the model's, beside other models."""
    models = [name for name in whole_models(beside) if not _only_drafts(beside[name])]
    if len({name_words(name) for name in models}) <= 1:
        return list(found)
    return [name for name in found if name_words(name) and {*name_words(name)} <= {*name_words(model.name)}]


def _readable(read: Callable[[], T]) -> T | None:
    """Return None for a damaged file, which is reported when loaded."""
    try:
        return read()
    except StartupError:
        return None


def _only_drafts(path: Path) -> bool:
    return bool(_readable(lambda: only_drafts(GgufHeader(path))))


def drafting_file(
    model: Path, source: str, on_hub: HubName | None = None, *, find: Callable[[str], Path] = resolve_model
) -> Path | None:
    """Return the separate file that drafts, downloaded if needed. `source`: `none`, a name, or `auto` or
    `own` for a fitting head beside the model or else in its repository."""
    if source == "none":
        return None
    if source not in ("auto", "own"):
        return find(source)
    header = _readable(lambda: GgufHeader(model))
    if header is None or not may_have_head(header) or _readable(lambda: head_in(header)) is not None:
        return None
    beside = {path.name: path for path in model.parent.glob("*.gguf") if path.is_file() and path != model}
    found = _belonging(model, [name for name, path in beside.items() if _only_drafts(path)], beside)
    found = [name for name in sorted(found) if _drafts_for(beside[name], header)]
    if found or on_hub is None:
        chosen = preferred_head(found)
        return None if chosen is None else beside[chosen]
    try:
        fetched = hub.fetch_head(on_hub)
    except StartupError as error:  # the hub is away, but the model itself is here
        logger.warning("%s: %s drafts without a head, if there is one", error, on_hub)
        return None
    return fetched if fetched is not None and _drafts_for(fetched, header) else None


def _drafts_for(path: Path, model: GgufHeader) -> bool:
    try:
        head = head_in(GgufHeader(path))
    except StartupError as error:
        logger.warning("no head drafts: %s", error)
        return False
    return head is not None and why_unfit(head, model) is None


def _fitting(model: Path, found: Sequence[Path]) -> list[Path]:
    """Return projectors whose rows have the model's width."""
    header = _readable(lambda: GgufHeader(model)) if found else None
    if header is None:
        return []
    width = header.get_int(header.for_architecture("embedding_length"))
    return [
        path
        for path in found
        if _readable(lambda path=path: ProjectorFacts.of(GgufHeader(path)).rows_width) == width  # type: ignore[misc]
    ]


def hold(paths: Iterable[Path]) -> Sequence[BinaryIO]:
    """Mark files as in use until the result is closed or the process ends. Disks without locks ignore it."""
    files = []
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
            files.append(file)
    return files


class AdapterFiles:
    """Methods block: they read whole files, and may download some."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: None if clients may name no adapters."""
        self._folder = folder

    @property
    def folders(self) -> tuple[Path, ...]:
        if self._folder is None:
            return ()
        return (self._folder.resolve(), hub.cache_folder())

    def of_operator(self, source: AdapterSource) -> Adapter:
        """Load from any path."""
        try:
            return _adapter(source, resolve_model(source.path))
        except AdapterFailed as error:
            raise StartupError(str(error)) from None

    def of_client(self, source: AdapterSource) -> Adapter:
        """Load from the folder. One message for all paths outside of the folder reveals nothing about this
        machine. Raises AdapterNotAllowed, AdapterFailed."""
        if self._folder is None:
            raise AdapterNotAllowed(
                "This server loads no adapters over the API; start it with --adapter-dir DIR."
            )
        if not source.path.startswith(PREFIX):
            return _adapter(source, _within(self._folder.resolve(), source.path))
        try:
            return _adapter(source, resolve_model(source.path))
        except StartupError as error:
            raise AdapterFailed(f"{error}.") from None


def _within(root: Path, name: str) -> Path:
    outside = AdapterNotAllowed("The path is outside of the server's --adapter-dir.")
    try:
        path = (root / name).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError):  # too long a name, a loop of links, a zero byte
        raise outside from None
    if not path.is_relative_to(root):
        raise outside
    if not is_file:
        raise AdapterFailed(f"The file {name} does not exist in the server's --adapter-dir.")
    return path


def _adapter(source: AdapterSource, path: Path) -> Adapter:
    try:
        require_utf8(path)
    except StartupError as error:
        raise AdapterFailed(f"{error}.") from None
    return Adapter(name=source.name, path=str(path), digest=file_digest(path), scale=source.scale)
