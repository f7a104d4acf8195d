"""Key files in which each key is its holder's name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from openai_cpu_server.http.keys import KeyRing


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def of(name: str) -> dict[str, str]:
    return {"x-api-key": name}


def key_file(folder: Path, **holders: str) -> Path:
    """Write a key file. `holders`: the lines of each holder's table."""
    path = folder / "keys.toml"
    path.write_text("".join(f'[keys.{n}]\nsha256 = "{sha(n)}"\n{lines}\n' for n, lines in holders.items()))
    return path


def key_ring(folder: Path, shared: str | None = None, /, **holders: str) -> KeyRing:
    return KeyRing(shared, key_file(folder, **holders))
