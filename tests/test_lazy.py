"""Large modules of others are not imported by the collection of tests."""

from __future__ import annotations

import inspect
import sys

from tests.lazy import Lazy


def test_a_module_is_imported_when_something_of_it_is_used_and_not_when_pytest_looks_for_fixtures() -> None:
    module = Lazy("wsgiref.simple_server")
    assert getattr(module, "_mock_name", None) is None
    assert inspect.unwrap(module) is module  # type: ignore[arg-type]
    assert "wsgiref.simple_server" not in sys.modules
    assert module.WSGIServer is sys.modules["wsgiref.simple_server"].WSGIServer
