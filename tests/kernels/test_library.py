"""Building and loading the library of kernels. A kernel is on only if its results are right."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.kernels.build import LEVELS, BuildFailed, build_library, cpu_flags
from openai_cpu_server.kernels.graphs import (
    Computing,
    Floats,
    GgmlGraphs,
    GgmlType,
    LayoutGraphs,
    ProductCase,
    StoredWeights,
    random_weights,
)
from openai_cpu_server.kernels.library import GGML_OF, Kernel, KernelLibrary, digest
from openai_cpu_server.kernels.proof import attention_proofs, kernels_in_use, proved, tile_proofs
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.bindings import libggml
from openai_cpu_server.llama.gguf.tensors import TENSOR_TYPES
from tests.kernels.library import KERNELS, ROOT, failures_with
from tests.kernels.pools import attention_case, random_pool
from tests.kernels.test_recurrent import convolution, delta_net
from tests.tiny_model import tiny_model_path


def test_the_library_is_built_for_the_required_llama_cpp() -> None:
    assert f'"llama-cpp-python=={GGML_OF}"' in (ROOT / "pyproject.toml").read_text()


def test_a_compiler_that_fails_leaves_no_library(tmp_path: Path) -> None:
    target = tmp_path / "lib.so"
    with pytest.raises(BuildFailed, match="failed"):
        build_library("false", target=target)
    with pytest.raises(BuildFailed, match="no C\\+\\+ compiler"):
        build_library("no-such-compiler", target=target)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_library_for_older_cpus_computes_right(library: KernelLibrary, tmp_path: Path) -> None:
    """Compile for AVX2 alone. The other tests of kernels run with all instructions of this machine."""
    if "avx2" not in cpu_flags() or not shutil.which("c++"):
        pytest.skip("there is no AVX2, or no compiler")
    if library.instruction_set == "avx2":
        pytest.skip("this machine has no more: every test of kernels runs with AVX2")
    library = tmp_path / "avx2.so"
    build_library(target=library, cpu=LEVELS["x86_64"]["avx2"])
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


def test_a_kernel_with_the_results_of_ggml_is_on(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    state = proved(library, Kernel.ATTENTION, graphs, attention_proofs())
    assert state.instruction_set == library.instruction_set
    library.switch_off(Kernel.ATTENTION)
    assert proved(library, Kernel.TILES, graphs, tile_proofs()).instruction_set == "amx"


def test_tiles_are_on_only_where_the_cpu_and_the_system_have_them(library: KernelLibrary) -> None:
    has_amx = {"amx_tile", "amx_bf16"} <= {*cpu_flags().split()}
    why_not = None if has_amx else "this CPU has no AMX"
    assert library.why_no_tiles == why_not
    for mode in ("auto", "fast"):
        tiles = kernels_in_use(mode, libggml).tiles
        assert (tiles.is_on, tiles.why_off) == (has_amx, why_not or "")
    assert str(kernels_in_use("invariant", libggml).tiles) == "off: --kernels invariant"


def test_a_kernel_with_other_results_is_off(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    factor = 1.0

    @contextmanager
    def growing_results(graphs: GgmlGraphs) -> Iterator[Computing]:
        def compute_more(threads: int) -> Floats:
            nonlocal factor
            factor *= 1.02
            return factor * compute(threads)

        with next(attention_proofs())(graphs) as compute:
            yield compute_more

    state = proved(library, Kernel.ATTENTION, graphs, iter([growing_results]))
    assert (state.is_on, state.why_off) == (False, "its results are not ggml's")
    before = library.num_done(Kernel.ATTENTION)
    with next(attention_proofs())(graphs) as compute:
        compute(1)
    assert library.num_done(Kernel.ATTENTION) == before


def test_a_kernel_loaded_late_is_off(library: KernelLibrary, graphs: GgmlGraphs, tmp_path: Path) -> None:
    late = KernelLibrary(ctypes.CDLL(shutil.copy(KERNELS, tmp_path / "late.so")))
    assert "do not reach it" in proved(late, Kernel.ATTENTION, graphs, attention_proofs()).why_off


def product(kind: GgmlType, outputs: int, batches: tuple[int, ...] = (), matrices: int = 0) -> ProductCase:
    random = np.random.default_rng(0)
    floats = {GgmlType.F32: np.float32, GgmlType.F16: np.float16}
    if kind in floats:
        weights = random.standard_normal((outputs, 256)).astype(floats[kind]).view(np.uint8)
    else:
        weights = random_weights(kind, outputs, 256, random)
    return ProductCase(
        weights=weights.reshape(matrices, outputs // matrices, -1) if matrices else weights,
        activations=random.standard_normal((*batches, 3, 256), np.float32),
        weight_type=kind,
    )


def unsupported_operations(graphs: GgmlGraphs) -> Iterator[tuple[Kernel, AbstractContextManager[Computing]]]:
    random = np.random.default_rng(0)
    cells = attention_case(random, random_pool(random, 96), width=64, cell_type=GgmlType.Q4_0)
    yield Kernel.ATTENTION, graphs.attending(cells)
    yield Kernel.RECURRENT, graphs.recurring(delta_net(tokens=2, reads=(1, 2), width=48))
    yield Kernel.RECURRENT, graphs.recurring(convolution(tokens=2, reads=(1, 2), taps=5))
    for rows, factors in (((3, 4, 50), (3, 4, 1)), ((3, 4, 64), (3, 4, 64)), ((3, 64), (1, 64))):
        yield Kernel.ELEMENTWISE, graphs.scaling(np.ones(rows, np.float32), np.ones(factors, np.float32))
    for kind, outputs in ((GgmlType.F32, 64), (GgmlType.F16, 64), (GgmlType.Q4_K, 7), (GgmlType.Q8_0, 1)):
        yield Kernel.PRODUCTS, graphs.multiplying(product(kind, outputs))
    yield Kernel.PRODUCTS, graphs.multiplying(product(GgmlType.Q8_0, 80, (3, 2), 2))


def test_ggml_computes_operations_without_a_kernel(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    for kernel, operation in unsupported_operations(graphs):
        with operation as compute:
            theirs, num_done = compute(2), library.num_done(kernel)
            library.switch_on(kernel)
            assert np.array_equal(compute(2), theirs)
            library.switch_off(kernel)
        assert library.num_done(kernel) == num_done


def test_an_engine_reports_its_kernels(library: KernelLibrary) -> None:
    for mode, expected in (("auto", library.instruction_set), ("off", "off: --kernels off")):
        options = EngineOptions(model_path=str(tiny_model_path()), kv_tokens=512, max_seqs=2, kernels=mode)
        backend = LlamaBackend.load(options, lambda fraction: None)
        backend.close()
        assert backend.info.kernels.described["attention"] == expected


DEPTH, OUTPUTS, ROWS = 512, 64, (1, 3, 8)


@pytest.fixture(scope="module")
def layouts() -> LayoutGraphs:
    return LayoutGraphs(libggml)


def weights(kind: int, experts: int | None) -> StoredWeights:
    count = OUTPUTS * (experts or 1)
    values = np.random.default_rng(kind).standard_normal((count, DEPTH), np.float32)
    data = ctypes.create_string_buffer(TENSOR_TYPES[kind].num_bytes(values.size))
    libggml.ggml_quantize_chunk(kind, values.ctypes.data, data, 0, count, DEPTH, None)
    return StoredWeights(type=kind, depth=DEPTH, outputs=OUTPUTS, num_experts=experts, data=data.raw)


@pytest.mark.parametrize("experts", [None, 3])
@pytest.mark.parametrize("kind", ["q4_0", "q4_K", "iq4_nl", "mxfp4"])
def test_another_layout_gives_the_same_results(layouts: LayoutGraphs, kind: str, experts: int | None) -> None:
    number = next(each.number for each in TENSOR_TYPES.values() if each.name == kind)
    stored = weights(number, experts)
    with layouts.plain(stored, ROWS) as plain, layouts.repacked(stored, ROWS) as repacked:
        if repacked is None:
            pytest.skip("ggml has no other layout for them on this CPU")
        for rows in ROWS:
            expected, found = plain[rows](1), repacked[rows](2)
            assert expected.shape == (rows * (experts or 1), OUTPUTS)
            assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_floats_have_no_other_layout(layouts: LayoutGraphs) -> None:
    with layouts.repacked(weights(GgmlType.F32, None), ROWS) as repacked:
        assert repacked is None


def test_each_expert_gets_its_share_of_the_rows(layouts: LayoutGraphs) -> None:
    stored = weights(GgmlType.Q8_0, 3)
    size = len(stored.data) // 3
    with layouts.plain(stored, [2]) as computing:
        found = computing[2](1)
    for expert in range(3):
        part = stored.data[expert * size :][:size]
        alone = StoredWeights(type=stored.type, depth=DEPTH, outputs=OUTPUTS, data=part)
        with layouts.plain(alone, [6]) as computing:
            expected = computing[6](1)
        for row in range(expert, 6, 3):
            assert np.allclose(found[row], expected[row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("experts", [None, 3])
def test_products_left_to_ggml(library: KernelLibrary, layouts: LayoutGraphs, experts: int | None) -> None:
    library.switch_on(Kernel.PRODUCTS)
    for left_types, kinds in (((GgmlType.Q8_0,), (GgmlType.Q4_0,)), ((), (GgmlType.Q8_0, GgmlType.Q4_0))):
        library.leave(left_types)
        for kind in (GgmlType.Q8_0, GgmlType.Q4_0):
            before = library.num_done(Kernel.PRODUCTS)
            with layouts.plain(weights(kind, experts), [2]) as computing:
                computing[2](1)
            assert (library.num_done(Kernel.PRODUCTS) > before) == (kind in kinds)
