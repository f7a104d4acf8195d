"""How the library comes to be, what keeps it out, and that a kernel is on only if it is right."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.kernels.build import LEVELS, BuildFailed, build, cpu_flags
from openai_cpu_server.kernels.graphs import GgmlGraphs
from openai_cpu_server.kernels.library import GGML_OF, Kernel, KernelLibrary, digest
from openai_cpu_server.kernels.proof import attention_proofs, proved
from openai_cpu_server.kernels.tensors import Computing, Floats
from openai_cpu_server.llama.backend import LlamaBackend
from tests.kernels.library import KERNELS, ROOT, failures_with
from tests.tiny_model import tiny_model_path


def test_it_is_made_for_the_llama_cpp_that_is_required() -> None:
    assert f'"llama-cpp-python=={GGML_OF}"' in (ROOT / "pyproject.toml").read_text()


def test_a_compiler_that_fails_leaves_no_library(tmp_path: Path) -> None:
    target = tmp_path / "lib.so"
    with pytest.raises(BuildFailed, match="failed"):
        build("false", target=target)
    with pytest.raises(BuildFailed, match="no C\\+\\+ compiler"):
        build("no-such-compiler", target=target)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_compiles_for_older_cpus_and_is_right_there_too(library: KernelLibrary, tmp_path: Path) -> None:
    """AVX2 alone; every other test of kernels runs with what this machine has. Random shapes, which are many,
    do so too."""
    if "avx2" not in cpu_flags() or not shutil.which("c++"):
        pytest.skip("there is no AVX2, or no compiler")
    if library.instruction_set == "avx2":
        pytest.skip("this machine has no more: every test of kernels runs with AVX2")
    library = tmp_path / "avx2.so"
    build(target=library, cpu=LEVELS["x86_64"]["avx2"])
    failures = failures_with(library)
    assert not failures, failures


def test_another_build_has_another_digest(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    assert digest(library) == ""
    found = set()
    for content in (b"1", b"2"):
        library.write_bytes(content)
        found.add(digest(library))
    assert len(found) == 2


def test_a_kernel_that_shows_ggmls_results_is_on(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    state = proved(library, Kernel.ATTENTION, graphs, attention_proofs())
    assert state.instruction_set == library.instruction_set


def test_a_kernel_with_other_results_is_off(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    """What is compared differs a little each time, as if the kernel did."""
    factor = 1.0

    @contextmanager
    def grows(graphs: GgmlGraphs) -> Iterator[Computing]:
        def compute_more(threads: int) -> Floats:
            nonlocal factor
            factor *= 1.02
            return factor * compute(threads)

        with next(attention_proofs())(graphs) as compute:
            yield compute_more

    state = proved(library, Kernel.ATTENTION, graphs, iter([grows]))
    assert (state.is_on, state.why_off) == (False, "its results are not ggml's")
    assert not reaches(library, graphs)


def test_a_kernel_that_came_too_late_is_off(
    library: KernelLibrary, graphs: GgmlGraphs, tmp_path: Path
) -> None:
    """A second copy of the library, behind ggml."""
    late = KernelLibrary(ctypes.CDLL(shutil.copy(KERNELS, tmp_path / "late.so")))
    state = proved(late, Kernel.ATTENTION, graphs, attention_proofs())
    assert "do not reach it" in state.why_off


def test_an_engine_says_what_it_computes_with(library: KernelLibrary) -> None:
    for asked, expected in (("auto", library.instruction_set), ("off", "off: --kernels off")):
        options = EngineOptions(model_path=str(tiny_model_path()), kv_tokens=512, max_seqs=2, kernels=asked)
        backend = LlamaBackend.load(options, lambda fraction: None)
        backend.close()
        assert backend.info.kernels.described["attention"] == expected


def reaches(library: KernelLibrary, graphs: GgmlGraphs) -> bool:
    """Whether an attention is computed by the kernel."""
    before = library.num_done(Kernel.ATTENTION)
    with next(attention_proofs())(graphs) as compute:
        compute(1)
    return library.num_done(Kernel.ATTENTION) > before
