"""The library of kernels in this process, in front of its ggml."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.kernels.graphs import GgmlGraphs
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, obstacle
from tests.kernels.library import KERNELS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.native)


@pytest.fixture(scope="session")
def loaded() -> KernelLibrary:
    if why_not := obstacle(KERNELS):
        pytest.skip(why_not)
    return KernelLibrary(ctypes.CDLL(str(KERNELS)))


@pytest.fixture
def library(loaded: KernelLibrary) -> Iterator[KernelLibrary]:
    """Everything in it is off before and after."""
    _switch_off(loaded)
    yield loaded
    _switch_off(loaded)


@pytest.fixture(scope="session")
def graphs() -> GgmlGraphs:
    from llama_cpp._ggml import libggml

    return GgmlGraphs(libggml)


def _switch_off(library: KernelLibrary) -> None:
    for kernel in Kernel:
        library.switch_off(kernel)
    library.leave(())
