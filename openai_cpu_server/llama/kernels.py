"""Switches the kernels in front of llama.cpp's ggml on."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.model_info import Kernels
from openai_cpu_server.kernels.library import obstacle
from openai_cpu_server.kernels.proof import kernels_in_use
from openai_cpu_server.llama.bindings import libggml
from openai_cpu_server.llama.model.native import native_log


def switch_kernels(asked: str, pause: Callable[[], None] = lambda: None) -> Kernels:
    """What is asked for (`auto` or `off`) and proved is on afterwards, for all models of this process.

    `pause` is called between two small computations of the proof.
    """
    native_log()
    return kernels_in_use(asked, libggml, pause)


def are_kernels_expected() -> bool:
    """Whether an engine that starts here will find kernels that it can try. Switches nothing."""
    return obstacle() is None
