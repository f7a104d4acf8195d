"""llama-cpp-python's ctypes bindings without its `__init__`, which imports numpy, jinja2 and more (0.16 s of
CPU time)."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from openai_cpu_server.errors import UNLOADABLE, StartupError

_PACKAGE = "llama_cpp"


@contextlib.contextmanager
def _package_not_run() -> Iterator[None]:
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is None:  # it runs already, or is not installed, which the import reports
        yield
        return
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


try:
    with _package_not_run():
        from llama_cpp import llama_cpp as llama_cpp
        from llama_cpp._ggml import libggml as libggml
except (ImportError, OSError, RuntimeError) as error:  # a library that is missing, or newer than the system's
    sys.stderr.write(f"llama.cpp cannot be loaded: {error}\n")
    raise SystemExit(UNLOADABLE) from None


@functools.cache
def _further(module: str, problem: str) -> Any:
    try:
        with _package_not_run():
            return importlib.import_module(f"{_PACKAGE}.{module}")
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise StartupError(f"{problem}: {error}.") from None


def mtmd_library() -> Any:
    return _further("mtmd_cpp", "llama-cpp-python has no libmtmd, which takes pictures and sounds")


def head_library() -> Any:
    return _further("llama_cpp_ext", "this llama-cpp-python has no functions for prediction heads")
