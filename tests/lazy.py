"""Large modules of others: every pytest worker imports all files of tests, and runs the tests of some."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Lazy:
    """A module that is imported when something of it is used."""

    def __init__(self, name: str) -> None:
        """Skips the file of tests if there is no such module."""
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest, looking for fixtures, asks all that a file has
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
