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
def loaded() -> KernelLibrary:
    if why_not := obstacle(KERNELS):
        pytest.skip(why_not)
    return KernelLibrary(ctypes.CDLL(str(KERNELS)))


@pytest.fixture
def library(loaded: KernelLibrary) -> Iterator[KernelLibrary]:
    """Everything in it is off before and after."""

    loaded.reset()
    yield loaded
    loaded.reset()


@pytest.fixture(scope="session")
def graphs() -> GgmlGraphs:
    return GgmlGraphs(libggml)
