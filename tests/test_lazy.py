"""Large modules of others are not imported by the collection of tests."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from tests.lazy import Lazy


def test_a_module_is_imported_when_something_of_it_is_used_and_not_when_pytest_looks_for_fixtures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_large_module.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = Lazy("a_large_module")
    assert getattr(module, "_mock_name", None) is None
    assert inspect.unwrap(module) is module  # type: ignore[arg-type]
    assert "a_large_module" not in sys.modules
    assert module.answer == 42
