"""The facts that measurements depend on: the model file, the machine and its build of llama.cpp."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import msgspec
import psutil

from openai_cpu_server.kernels.library import digest as kernels_digest
from openai_cpu_server.llama.bindings import VERSION, llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.model.native import native_log

_CPU_INFO = Path("/proc/cpuinfo")


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str
    file_type: int | None
    """llama.cpp's number of the file's quantisation."""
    file_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> ModelFacts:
        """The facts about a file. Raises `StartupError` if it is no model."""
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
    """A digest of the features that the CPU reports."""
    features: str
    """The CPU features that this build of llama.cpp uses."""
    library: str
    kernels: str
    """A digest of the library of kernels that goes in front of it."""
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
    """What Linux says about the first core; {} on other systems."""
    try:
        first_core = _CPU_INFO.read_text("utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
