"""Large third-party modules: every pytest worker imports all test files, but runs the tests of some."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Lazy:
    """A module that is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        """Skip the test file if the module is not installed."""
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for fixtures in all variables of a test file
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
