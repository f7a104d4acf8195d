"""Requests of well-known programs, from their sources or from public captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "captured"


def captured(name: str) -> Any:
    return json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
