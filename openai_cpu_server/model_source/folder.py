"""Models of `--models-dir`. A changed file is read once it has settled, because it may still be copied."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openai_cpu_server.config.folders import require_utf8
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, file_type_name, model_kind
from openai_cpu_server.llama.gguf.heads import only_drafts
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.model_source.names import model_parts, name_words, whole_models

logger = logging.getLogger(__name__)

_DEPTH = 2
_SETTLED_S = 2.0
_DRAFT = "draft"
_MODEL = "model"
_PART = re.compile(r"-\d{5}-of-\d{5}$")


class FileState(NamedTuple):
    num_bytes: int
    changed_s: float


class FolderFacts(NamedTuple):
    architecture: str
    kind: ModelKind
    quantisation: str | None


class FolderModel(NamedTuple):
    name: str
    path: Path
    """First part of several."""
    state: FileState
    facts: FolderFacts | str
    """Text: why a damaged file cannot be served."""


class ModelFolder:
    """Methods block, and belong to one thread at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        taken: Collection[str] = (),
        served: Collection[Path] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`taken`: other models' names. `served`: files served under other names."""
        self._folder = folder
        self._taken = frozenset(taken)
        self._served = frozenset(path.resolve() for path in served)
        self._clock = clock
        self._names: dict[Path, str] = {}
        self._seen: dict[Path, FolderModel | FileState] = {}
        """A lone state marks a file that is not a model."""
        self._reported: set[Path] = set()

    def names(self) -> dict[str, Path]:
        """Return files without reading them; some may not be models."""
        self._give_names(self._paths(), reports=False)
        return {name: path for path, name in self._names.items()}

    def look(self) -> list[FolderModel]:
        """Treat a file that has just changed as before, or as absent."""
        paths = self._paths()
        self._give_names(paths, reports=True)
        for gone in self._seen.keys() - self._names.keys():
            del self._seen[gone]
        for path, name in self._names.items():
            self._look_at(path, name)
        return [model for path in self._names if isinstance(model := self._seen.get(path), FolderModel)]

    def _paths(self) -> list[Path]:
        found = sorted(_models(self._folder, _DEPTH), key=lambda path: (len(path.parts), str(path)))
        return [path for path in found if path.resolve() not in self._served]

    def _give_names(self, paths: Sequence[Path], *, reports: bool) -> None:
        for gone in self._names.keys() - set(paths):
            del self._names[gone]
        used = {*self._taken, *self._names.values()}
        for path in paths:
            if path in self._names:
                continue
            short, long = _stem(path.name), _stem(path.relative_to(self._folder).as_posix())
            name = next((one for one in (short, long) if one not in used), None)
            if name != short and reports and path not in self._reported:
                self._reported.add(path)
                if name is None:
                    logger.warning("%s is not served: another model is called %s", path, long)
                else:
                    logger.info("%s is served as %s: another model is called %s", path, name, short)
            if name is not None:
                used.add(name)
                self._names[path] = name

    def _look_at(self, path: Path, name: str) -> None:
        try:
            files = [path.with_name(name).stat() for name in model_parts(path.name)]
        except OSError:
            return  # it goes just now
        state = FileState(sum(file.st_size for file in files), max(file.st_mtime for file in files))
        before = self._seen.get(path)
        is_unchanged = state == (before.state if isinstance(before, FolderModel) else before)
        age_s = self._clock() - state.changed_s
        if is_unchanged or -_SETTLED_S <= age_s < _SETTLED_S:  # another machine writes a time of the future
            return
        facts = _facts(path)
        if isinstance(facts, str):
            logger.warning("%s is not served: %s", name, facts)
        self._seen[path] = state if facts is None else FolderModel(name, path, state, facts)


def _models(folder: Path, depth: int) -> Iterator[Path]:
    """Links may form a cycle."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        files = [entry.name for entry in entries if entry.is_file()]
        folders = [entry.name for entry in entries if depth and entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it has just gone, or is not ours to read
    yield from (
        folder / name for name in whole_models(files) if _DRAFT not in name_words(name) and _is_utf8(name)
    )
    for name in folders:
        yield from _models(folder / name, depth - 1)


def _is_utf8(name: str) -> bool:
    try:
        require_utf8(name)
    except StartupError:
        return False
    return True


def _stem(name: str) -> str:
    return _PART.sub("", name[: -len(".gguf")])


def _facts(path: Path) -> FolderFacts | str | None:
    """Return None for adapters, projectors and drafting files, or a text for a damaged file."""
    try:
        header = GgufHeader(path)
        is_model = header.get_str("general.type") in (None, _MODEL)
        if not is_model or only_drafts(header) or not model_tensors(header):
            return None
        quantisation = file_type_name(header.get_int("general.file_type") or 0)
        return FolderFacts(header.architecture, model_kind(header), quantisation)
    except StartupError as error:
        return str(error)
