"""Requests of well-known programs, as their sources or public captures have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "captured"


def captured(name: str) -> Any:
    return json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
