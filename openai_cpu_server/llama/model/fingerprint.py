"""One line for all that saved cells depend on."""

from __future__ import annotations

import hashlib
from pathlib import Path

from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.bindings import VERSION, llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files

_EDGE_BYTES = 2**20
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def cells_fingerprint(header: GgufHeader, info: ModelInfo, *, flash_attention: bool) -> str:
    """A digest of the model, the layout of the cells, and the library that wrote them: cells with another
    one would mean something else here. Raises `StartupError`."""
    facts = (
        f"model={_model_digest(model_files(header))}",
        f"kv={info.kv_type},{info.kv_bytes_per_token}",
        f"flash={'on' if flash_attention else 'off'}",
        f"llama={VERSION},{llama_cpp.llama_version().decode()}",
    )
    return " ".join(facts)


def _model_digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            _add_file(digest, path)
        except OSError as error:
            raise StartupError(f"Cannot read {path}: {error.strerror}.") from None
    return digest.hexdigest()[:32]


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    """Add a file's size, time of change (samples can miss an edit), both ends, and samples between them."""
    facts = path.stat()
    digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
    last = max(0, facts.st_size - _EDGE_BYTES)
    with path.open("rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        for index in range(_SAMPLES):
            file.seek(last * index // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
        file.seek(last)
        digest.update(file.read())
