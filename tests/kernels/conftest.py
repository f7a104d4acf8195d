"""The library of kernels in this process, in front of its ggml."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from openai_cpu_server.kernels.graphs import GgmlGraphs
from openai_cpu_server.kernels.library import KernelLibrary, obstacle
from openai_cpu_server.llama.bindings import libggml
from tests.kernels.library import KERNELS


@pytest.fixture(scope="session")
def session_library() -> KernelLibrary:
    if why_not := obstacle(KERNELS):
        pytest.skip(why_not)
    return KernelLibrary(ctypes.CDLL(str(KERNELS)))


@pytest.fixture
def library(session_library: KernelLibrary) -> Iterator[KernelLibrary]:
    """Library with all kernels off, before and after each test."""
    session_library.reset()
    yield session_library
    session_library.reset()


@pytest.fixture(scope="session")
def graphs() -> GgmlGraphs:
    return GgmlGraphs(libggml)
