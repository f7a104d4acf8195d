"""Measurements on disk, by their conditions."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import psutil

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.library import bindings_version
from openai_cpu_server.kernels.library import digest as kernels_digest
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model.model import native_log
from openai_cpu_server.storage.private_files import claim, replacing

_CPU_INFO = Path("/proc/cpuinfo")


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str
    file_type: int | None
    """LLAMA_FTYPE."""
    file_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> ModelFacts:
        header = GgufHeader(path)
        files = model_files(header)
        return cls(
            architecture=header.architecture,
            file_type=header.get_int("general.file_type"),
            file_bytes=total_bytes(files),
            modified_ns=max(file.stat().st_mtime_ns for file in files),
        )


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    cpu_flags: str
    """Digest."""
    features: str
    """CPU features that this build of llama.cpp uses."""
    library: str
    kernels: str
    """Digest of our library."""
    cores: int
    usable_cores: int

    @classmethod
    def here(cls) -> MachineFacts:
        native_log()
        try:
            first_core = _CPU_INFO.read_text("utf-8").partition("\n\n")[0]
        except OSError:
            first_core = ""
        pairs = (line.partition(":") for line in first_core.splitlines())
        cpu_info = {key.strip(): value.strip() for key, _, value in pairs}
        flags = cpu_info.get("flags") or cpu_info.get("Features") or ""
        return cls(
            cpu=cpu_info.get("model name") or platform.processor() or platform.machine(),
            cpu_flags=hashlib.sha256(flags.encode()).hexdigest()[:16],
            features=llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
            library=str(bindings_version()),
            kernels=kernels_digest(),
            cores=psutil.cpu_count() or 1,
            usable_cores=Machine().num_threads(),
        )


logger = logging.getLogger(__name__)


class MeasurementKey(msgspec.Struct, frozen=True, kw_only=True):
    VERSION: ClassVar[int]
    version: int
    model: ModelFacts
    machine: MachineFacts

    @classmethod
    def here(cls: type[K], model: Path, **conditions: Any) -> K:
        return cls(version=cls.VERSION, model=ModelFacts.of(model), machine=MachineFacts.here(), **conditions)


K = TypeVar("K", bound=MeasurementKey)
V = TypeVar("V", bound=msgspec.Struct)


class _Entry(msgspec.Struct):
    key: msgspec.Raw
    value: msgspec.Raw


_DAMAGE = (OSError, msgspec.MsgspecError, UnicodeDecodeError)


@dataclass(frozen=True)
class Measured(Generic[K, V]):
    """A file that is damaged, has another key, or an impossible value counts as absent."""

    folder: Path
    key_type: type[K]
    value_type: type[V]
    is_sane: Callable[[V], bool] = lambda value: True

    @property
    def _kind(self) -> str:
        return self.key_type.__name__.removesuffix("Key").lower()

    def path(self, key: K) -> Path:
        digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
        return self.folder / f"{self._kind}-{digest}.json"

    def get(self, key: K) -> V | None:
        path = self.path(key)
        try:
            stored_key, value = self._read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _DAMAGE as error:
            logger.warning("ignoring %s: %s", path, error)
            return None
        return value if stored_key == key and self.is_sane(value) else None

    def of_model(self, model: Path) -> list[tuple[K, V]]:
        """Newest first."""
        conditions = self.key_type.VERSION, ModelFacts.of(model), MachineFacts.here()
        found = []
        for path in self.folder.glob(f"{self._kind}-*.json"):
            try:
                (key, value), modified_s = self._read(path), path.stat().st_mtime
            except _DAMAGE as error:
                logger.debug("ignoring %s: %s", path, error)
                continue
            if (key.version, key.model, key.machine) == conditions and self.is_sane(value):
                found.append((modified_s, (key, value)))
        return [entry for _, entry in sorted(found, key=itemgetter(0), reverse=True)]

    def put(self, key: K, value: V) -> bool:
        """Return False, and log why, if storing fails."""
        path = self.path(key)
        entry = _Entry(*(msgspec.Raw(msgspec.json.encode(part)) for part in (key, value)))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(entry), indent=2))
        except OSError as error:
            logger.warning("cannot store measurements in %s: %s", path.parent, error.strerror or error)
            return False
        return True

    def _read(self, path: Path) -> tuple[K, V]:
        """The file must be this user's, because it determines how engines run."""
        with path.open("rb") as file:
            claim(path, file.fileno())
            entry = msgspec.json.decode(file.read(), type=_Entry)
        return (
            msgspec.json.decode(entry.key, type=self.key_type),
            msgspec.json.decode(entry.value, type=self.value_type),
        )


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of `serve` for this model."""

    threads: int
    threads_batch: int
    repack: bool
    prefill_tokens: int
    kv_type: str
    flash_attention: bool

    def applied(self, options: EngineOptions, fixed: Collection[str] = ()) -> EngineOptions:
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in fixed}
        return msgspec.structs.replace(options, **values)


class ProfileKey(MeasurementKey, frozen=True, kw_only=True):
    VERSION = 1


def load_profile(model: Path, cache_dir: Path) -> Profile | None:
    """Return None if the model was not tuned here."""
    try:
        key = ProfileKey.here(model)
    except StartupError:
        return None  # loading the model reports what is wrong with it
    return Measured(cache_dir, ProfileKey, Profile).get(key)


def save_profile(model: Path, cache_dir: Path, profile: Profile) -> Path | None:
    """Return the profile's path, or log why it is not stored."""
    key, profiles = ProfileKey.here(model), Measured(cache_dir, ProfileKey, Profile)
    return profiles.path(key) if profiles.put(key, profile) else None
