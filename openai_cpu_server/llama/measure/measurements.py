"""Measurements on disk, under the facts that they depend on, and the settings found by `tune`."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.library import digest as kernels_digest
from openai_cpu_server.llama.bindings import VERSION, llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model.native import native_log
from openai_cpu_server.storage.private_files import claim, replacing

_CPU_INFO = Path("/proc/cpuinfo")


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str
    file_type: int | None
    """LLAMA_FTYPE of the file."""
    file_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> ModelFacts:
        """Read the facts. Raises `StartupError` if the file is not a model."""
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
    """Digest of the CPU's features."""
    features: str
    """CPU features that this build of llama.cpp uses."""
    library: str
    kernels: str
    """Digest of our library of kernels."""
    cores: int
    usable_cores: int

    @classmethod
    def here(cls) -> MachineFacts:
        native_log()
        cpu_info = _cpu_info()
        flags = cpu_info.get("flags") or cpu_info.get("Features") or ""
        return cls(
            cpu=cpu_info.get("model name") or platform.processor() or platform.machine(),
            cpu_flags=hashlib.sha256(flags.encode()).hexdigest()[:16],
            features=llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
            library=VERSION,
            kernels=kernels_digest(),
            cores=psutil.cpu_count() or 1,
            usable_cores=Machine().num_threads(),
        )


def _cpu_info() -> dict[str, str]:
    try:
        first_core = _CPU_INFO.read_text("utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


logger = logging.getLogger(__name__)

_Key = TypeVar("_Key", bound=msgspec.Struct)
_Value = TypeVar("_Value", bound=msgspec.Struct)


class _Entry(msgspec.Struct):
    key: msgspec.Raw
    value: msgspec.Raw


class Measurements:
    """Folder of measurements. A damaged file, or one with another key, counts as absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: msgspec.Struct) -> Path:
        digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
        return self._folder / f"{_kind(type(key))}-{digest}.json"

    def get(self, key: msgspec.Struct, type_: type[_Value]) -> _Value | None:
        path = self.path(key)
        try:
            known, value = _read(path, type(key), type_)
            return value if known == key else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.warning("ignoring %s: %s", path, error)
            return None

    def all_of(self, key_type: type[_Key], type_: type[_Value]) -> list[tuple[_Key, _Value]]:
        """Return all measurements with this type of key, newest first."""
        found = []
        for path in sorted(self._folder.glob(f"{_kind(key_type)}-*.json"), key=_age):
            try:
                found.append(_read(path, key_type, type_))
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                logger.debug("passing over %s: %s", path, error)
        return found

    def put(self, key: msgspec.Struct, value: msgspec.Struct) -> bool:
        """Store a measurement. Return False, and log why, if nothing can be written."""
        path = self.path(key)
        entry = _Entry(_raw(key), _raw(value))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(entry), indent=2))
        except OSError as error:
            logger.warning("cannot keep what was measured in %s: %s", path.parent, error.strerror or error)
            return False
        return True


def _kind(key_type: type[msgspec.Struct]) -> str:
    return key_type.__name__.removesuffix("Key").lower()


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # gone meanwhile
        return 0.0


def _read(path: Path, key_type: type[_Key], type_: type[_Value]) -> tuple[_Key, _Value]:
    entry = msgspec.json.decode(_trusted(path), type=_Entry)
    return msgspec.json.decode(entry.key, type=key_type), msgspec.json.decode(entry.value, type=type_)


def _raw(value: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _trusted(path: Path) -> bytes:
    """Must be this user's file, because it determines how engines run."""
    with path.open("rb") as file:
        claim(path, file.fileno())
        return file.read()


_VERSION = 1


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of `serve` for this model."""

    threads: int
    threads_batch: int
    repack: bool
    prefill_tokens: int
    kv_type: str
    flash_attention: bool

    def applied(self, options: EngineOptions, given: Collection[str] = ()) -> EngineOptions:
        """Return the options with this profile, except for those in `given`."""
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in given}
        return msgspec.structs.replace(options, **found)


class ProfileKey(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    model: ModelFacts
    machine: MachineFacts

    @classmethod
    def of(cls, model: Path) -> ProfileKey:
        """Return the key. Raises `StartupError` if the file is not a model."""
        return cls(version=_VERSION, model=ModelFacts.of(model), machine=MachineFacts.here())


def load_profile(model: Path, cache_dir: Path) -> Profile | None:
    """Return None if the model was not tuned on this machine."""
    try:
        key = ProfileKey.of(model)
    except StartupError:
        return None  # whoever loads the model says what is wrong with it
    return Measurements(cache_dir).get(key, Profile)


def save_profile(model: Path, cache_dir: Path, profile: Profile) -> Path | None:
    """Store a profile and return its path, or log why not and return None."""
    key, kept = ProfileKey.of(model), Measurements(cache_dir)
    return kept.path(key) if kept.put(key, profile) else None
