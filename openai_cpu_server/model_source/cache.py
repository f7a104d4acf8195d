"""Where files are kept that were made here."""

from __future__ import annotations

import tempfile
from pathlib import Path


def cache_folder() -> Path:
    try:
        return Path.home() / ".cache" / "openai-cpu-server"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "openai-cpu-server"
