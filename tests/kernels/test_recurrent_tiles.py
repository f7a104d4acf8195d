"""Delta nets of prompts by bf16 tiles, emulated where the CPU has none, against plain loops over doubles."""

from __future__ import annotations

import numpy as np
import pytest

from openai_cpu_server.kernels.graphs import DeltaNetCase, Floats, GgmlGraphs
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from openai_cpu_server.kernels.proof import TILES, delta_net_proofs, proved
from tests.kernels.library import compute_with
from tests.kernels.test_recurrent import READS, delta_net, exact_result, part_of, step_logprobs
from tests.llama.driver import loaded
from tests.tiny_model import tiny_model_path

_ROUNDED = 1e-2  # to bf16


def compute_by_tiles(
    library: KernelLibrary, graphs: GgmlGraphs, case: DeltaNetCase, threads: int = 2
) -> Floats:
    with graphs.recurring(case) as compute:
        return compute_with(library, Kernel.RECURRENT_TILES, compute, threads)


def error(found: Floats, case: DeltaNetCase) -> float:
    """Largest error of the results and of the memory, as a share of the largest value in each."""
    exact, results = exact_result(case), found.size - case.states.size
    parts = slice(None, results), slice(results, None)
    return max(float(np.abs(found[part] - exact[part]).max() / np.abs(exact[part]).max()) for part in parts)


@pytest.mark.parametrize(
    ("width", "tokens"),
    [(64, 16), (64, 32), (64, 47), (64, 48), (64, 70), (64, 300), (32, 70), (128, 70), (160, 47), (256, 70)],
)
def test_a_prompt_equals_its_tokens_one_by_one(
    library: KernelLibrary, graphs: GgmlGraphs, width: int, tokens: int
) -> None:
    for name in ("stays", "in each other's place") if width == 64 else ("new cells",):
        case = delta_net(tokens=tokens, reads=READS[name], width=width)
        found = compute_by_tiles(library, graphs, case, threads=1)
        assert error(found, case) < _ROUNDED
        assert np.array_equal(compute_by_tiles(library, graphs, case, threads=3), found)


def test_states_of_earlier_tokens_are_kept(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    for tokens in (20, 40, 70):
        for reads in ((1, 2, 3), (3, 9, 2)):
            case = delta_net(tokens=tokens, reads=reads, num_states=3)
            assert error(compute_by_tiles(library, graphs, case), case) < _ROUNDED


def test_a_sequence_does_not_depend_on_others_or_threads(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    case = delta_net(tokens=75, reads=(4, 2, 6))
    together = compute_by_tiles(library, graphs, case, threads=1)
    assert np.array_equal(compute_by_tiles(library, graphs, case, threads=3), together)
    size = (together.size - case.states.size) // 3
    for sequence in range(3):
        part = part_of(case, sequence, 0, 75)
        assert isinstance(part, DeltaNetCase)
        alone = compute_by_tiles(library, graphs, part)
        assert np.array_equal(alone[:size], together[sequence * size : (sequence + 1) * size])
    for broken in (np.nan, np.inf):
        case.states[2, 5] = broken
        found = compute_by_tiles(library, graphs, case)
        assert not np.isfinite(found[size : 2 * size]).all()
        assert np.array_equal(found[:size], together[:size])
        assert np.array_equal(found[2 * size : 3 * size], together[2 * size : 3 * size])


@pytest.mark.parametrize("gate", [0, -1e-3, -20, -1e4, -np.inf])
def test_states_that_stay_or_vanish(library: KernelLibrary, graphs: GgmlGraphs, gate: float) -> None:
    case = delta_net(tokens=100, reads=(1, 2))
    case.gates[:, ::7] = gate
    assert error(compute_by_tiles(library, graphs, case), case) < _ROUNDED


def test_errors_do_not_grow_with_a_long_prompt(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    """The inverted matrix is as far from the unit matrix as possible, and nothing decays."""
    case = delta_net(tokens=1000, reads=(1,), width=128)
    case.keys[:] = case.keys[:, :1] + 0.1 * case.keys
    case.keys[:] /= np.linalg.norm(case.keys, axis=-1, keepdims=True)
    case.betas[:] = 1
    case.gates[:] = 0
    assert error(compute_by_tiles(library, graphs, case), case) < 2 * _ROUNDED


def test_a_whole_model_computes_nearly_the_same_by_tiles(library: KernelLibrary) -> None:
    found = []
    with loaded(tiny_model_path(shape="tiny-qwen35"), kernels="off", kv_type="f32", threads=2) as backend:
        for is_on in (False, True):
            (library.switch_on if is_on else library.switch_off)(Kernel.RECURRENT_TILES)
            num_done = library.num_done(Kernel.RECURRENT_TILES)
            found.append(step_logprobs(backend))
            assert (library.num_done(Kernel.RECURRENT_TILES) > num_done) is is_on
    assert np.allclose(found[0], found[1], atol=0.1)
    assert not np.array_equal(found[0], found[1])


def test_few_tokens_and_gates_of_columns_do_not_use_tiles(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    library.switch_on(Kernel.RECURRENT_TILES)
    num_done = library.num_done(Kernel.RECURRENT_TILES)
    cases = (
        delta_net(tokens=15, reads=(1, 2)),
        delta_net(tokens=18, reads=(1, 2), num_states=3),
        delta_net(tokens=70, reads=(1, 2), per_column=True),
    )
    for case in cases:
        with graphs.recurring(case) as compute:
            compute(2)
    assert library.num_done(Kernel.RECURRENT_TILES) == num_done


def test_delta_net_tiles_are_verified_against_ggml(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    assert proved(library, Kernel.RECURRENT_TILES, graphs, delta_net_proofs()).instruction_set == TILES
