"""Effect of each sampling parameter: which tokens are chosen, and how often."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from openai_cpu_server.contract.request import DryPenalty, Sampling
from openai_cpu_server.contract.step import Open
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.sampler import (
    BadLogits,
    DryRepetitions,
    Sampler,
    Scratch,
    Truncation,
    above,
    best_tokens,
    common_suffixes,
    draw,
    finite_logits,
    uniform,
)
from openai_cpu_server.llama.sampler import nucleus as nucleus_of

SIZE = 1000
END = frozenset({2, 10})
LOGITS = np.random.default_rng(1).normal(0, 1.5, SIZE).astype(np.float32)
BEST_FIRST = [int(token) for token in np.argsort(-LOGITS)]
PROBABILITIES = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum()
SCRATCH = Scratch(SIZE)


def sampler(
    prompt: tuple[int, ...] = (5,), output: tuple[int, ...] = (), end: frozenset[int] = END, **parameters
) -> Sampler:
    verb = Open(0, Sampling(**{"seed": 7, **parameters}), prompt, output)
    return Sampler(verb, SCRATCH, vocab_size=SIZE, end_tokens=end, piece=b"%d".__mod__)


def samples(count: int, logits: np.ndarray = LOGITS, **parameters) -> list[int]:
    chooser = sampler(**parameters)
    found = []
    for _ in range(count):
        found.append(chooser.choose(logits))
        chooser.accept(found[-1])
    chooser.close()
    return found


def nucleus(order: list[int], top_p: float) -> set[int]:
    count = int(np.searchsorted(PROBABILITIES[order].cumsum(), top_p)) + 1
    return set(order[:count])


def test_greedy_sampling_takes_the_first_of_equal_logits() -> None:
    tied = np.zeros(SIZE, np.float32)
    tied[[40, 50]] = 1
    assert samples(1, tied, temperature=0) == [40]
    assert samples(3, temperature=0) == BEST_FIRST[:1] * 3


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    counts = Counter(samples(8000, temperature=temperature))
    scaled = np.exp(LOGITS.astype(np.float64) / temperature)
    for token in BEST_FIRST[:20]:
        expected = scaled[token] / scaled.sum() * 8000
        assert counts[token] == pytest.approx(expected, abs=4 * expected**0.5 + 1)


@pytest.mark.parametrize(
    ("parameters", "allowed"),
    [
        ({"temperature": 1e-300}, set(BEST_FIRST[:1])),
        ({"top_k": 1}, set(BEST_FIRST[:1])),
        ({"top_k": 3}, set(BEST_FIRST[:3])),
        ({"top_p": 0.0}, set(BEST_FIRST[:1])),
        ({"top_p": 0.3}, nucleus(BEST_FIRST, 0.3)),
        ({"top_p": 0.3, "temperature": 50.0}, nucleus(BEST_FIRST, 0.3)),  # top_p comes before the temperature
        ({"min_p": 0.1}, set(np.flatnonzero(0.1 * PROBABILITIES.max() <= PROBABILITIES))),
        ({"top_k": 20, "top_p": 0.9, "min_p": 0.2, "typical_p": 0.95}, set(BEST_FIRST[:4])),
    ],
    ids=str,
)
def test_truncation_leaves_the_expected_tokens(parameters: dict[str, float], allowed: set[int]) -> None:
    assert len(allowed) < 50
    assert set(samples(4000, **parameters)) == allowed


def test_typical_draws_near_the_expected_surprise_only() -> None:
    surprise = -np.log(PROBABILITIES)
    entropy = (PROBABILITIES * surprise).sum()
    order = [int(token) for token in np.argsort(np.abs(surprise - entropy))]
    allowed = nucleus(order, 0.2)
    found = set(samples(6000, typical_p=0.2))
    assert found <= allowed
    assert len(found) > 0.9 * len(allowed)
    assert BEST_FIRST[0] not in found
    banned = {BEST_FIRST[0]: -100.0, BEST_FIRST[1]: -np.inf}  # llama.cpp multiplies 0 by its logarithm there
    assert not set(samples(2000, typical_p=0.2, logit_bias=banned)) & set(BEST_FIRST[:2])


@pytest.mark.parametrize("parameters", [{"temperature": 0}, {}, {"top_p": 0.5}])
def test_a_request_that_forbids_every_token_ends(parameters: dict[str, float]) -> None:
    everything = dict.fromkeys(range(SIZE), -np.inf)
    assert samples(1, logit_bias=everything, **parameters) == [min(END)]
    assert samples(1, end=frozenset(), logit_bias=everything, **parameters) == BEST_FIRST[:1]


@pytest.mark.parametrize("last_n", [0, 2, 5, 64])
def test_penalties_against_a_plain_reference(last_n: int) -> None:
    bias = {BEST_FIRST[3]: 2.5, BEST_FIRST[30]: -1.0}
    penalties = {"repeat_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.9}
    parameters = {"temperature": 0, "repeat_last_n": last_n, "logit_bias": bias, **penalties}
    prompt = tuple(BEST_FIRST[:8])
    output: list[int] = []
    for _ in range(60):
        logits = [float(logit) for logit in LOGITS]
        for token, by in bias.items():
            logits[token] += by
        for token in set([*prompt, *output][-last_n or SIZE :]):
            logits[token] = logits[token] / 1.7 if logits[token] > 0 else logits[token] * 1.7
        for token in set(output):
            logits[token] -= 0.4 + 0.9 * output.count(token)
        output.append(logits.index(max(logits)))
    assert samples(60, prompt=prompt, **parameters) == output
    assert samples(20, prompt=prompt, output=tuple(output[:40]), **parameters) == output[40:]
    assert 5 < len(set(output)) < 60
    untouched = LOGITS.copy()
    samples(3, untouched, prompt=prompt, ignore_eos=True, **{**parameters, "temperature": 1.0, "top_k": 5})
    assert (untouched == LOGITS).all(), "the logits of the caller stay unchanged"


@pytest.mark.parametrize("parameters", [{"temperature": 0}, {}, {"top_p": 0.5, "repeat_penalty": 2.0}])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_without_a_distribution_are_refused(parameters: dict[str, float], bad: float) -> None:
    logits = np.full(SIZE, bad, np.float32) if bad == -np.inf else LOGITS.copy()
    logits[17] = bad
    with pytest.raises(BadLogits, match=r"largest logit is -?(nan|inf)"):
        samples(1, logits, **parameters)
    with pytest.raises(BadLogits):
        sampler().score(logits, 3, 2)


EXTREMES = {
    "repeat_penalty": (1e-300, 1e-45, 1e-40, 1e-38, 0.01, 100.0, 1e38, 1e300),
    "min_p": (5e-324, 1e-300, 1e-40, 1e-6, 0.999999, 1.0),
    "top_p": (0.0, 5e-324, 1e-40, 1e-6, 1 - 1e-16),
    "typical_p": (5e-324, 1e-40, 1e-3, 1 - 1e-16),
    "temperature": (5e-324, 1e-300, 1e-40, 1e-5, 2.0),
    "presence_penalty": (-2.0, 1e-320, 2.0),
    "frequency_penalty": (-2.0, 1e-320, 2.0),
    "logit_bias": tuple({5: bias, 6: -bias} for bias in (1e-320, 100.0, 3e38)),
    "top_k": (1, 2**31 - 1),
}
SEVERAL = {"repeat_last_n": 2**31 - 1, "repeat_penalty": 1e-40, "presence_penalty": -2.0, "min_p": 0.1}
LARGEST = np.finfo(np.float32).max
NARROWINGS = [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.99}, {"typical_p": 0.5}]


@pytest.mark.parametrize("name", [*EXTREMES, "several"])
def test_extreme_parameters_choose_a_token(name: str) -> None:
    extremes = [SEVERAL] if name == "several" else [{name: value} for value in EXTREMES[name]]
    for scale, narrowing, parameters in itertools.product((1.0, 1e30, LARGEST / 10), NARROWINGS, extremes):
        logits = (LOGITS / np.abs(LOGITS).max() * scale).astype(np.float32)
        logits[7] = -np.inf
        found = samples(3, logits, prompt=tuple(range(20)), **{**narrowing, **parameters})
        assert all(0 <= token < SIZE for token in found), parameters


def test_adjustments_beyond_float32_become_finite_and_forbidden_tokens_stay_forbidden() -> None:
    adjusted = np.float32([1.0, np.nan, np.inf, -np.inf, -3.0])
    assert list(finite_logits(adjusted)) == [1.0, -np.inf, LARGEST, -np.inf, -3.0]
    usual = np.float32([1.0, -np.inf])
    assert finite_logits(usual) is usual
    assert (finite_logits(np.full(3, -np.inf, np.float32)) == -np.inf).all()


def test_scores_are_the_logarithms_of_the_softmax() -> None:
    found = sampler().score(LOGITS, BEST_FIRST[7], 3)
    assert found.logprob == pytest.approx(np.log(PROBABILITIES[BEST_FIRST[7]]), abs=1e-5)
    assert [token for token, _ in found.top] == BEST_FIRST[:3]
    assert [logprob for _, logprob in found.top] == pytest.approx(
        np.log(PROBABILITIES[BEST_FIRST[:3]]), abs=1e-5
    )
    for logits, token, best in (
        (np.zeros(SIZE), 5, [0, 1, 2]),
        (np.where(np.arange(SIZE) == 9, 1, -np.inf), 9, [9, 0]),
    ):
        found = sampler().score(logits.astype(np.float32), token, len(best))
        assert [token for token, _ in found.top] == best, "the first of equal tokens"


def test_uniform_is_uniform_and_its_neighbours_are_independent() -> None:
    grid = np.array([[uniform(seed, position) for position in range(200)] for seed in range(-100, 100)])
    assert 0 <= grid.min() < 0.001
    assert 0.999 < grid.max() < 1
    assert grid.mean() == pytest.approx(0.5, abs=0.01)
    assert grid.std() == pytest.approx(12**-0.5, abs=0.01)
    for shifted in (grid[1:, :], grid[:, 1:], grid[1:, 1:]):
        pair = grid[: shifted.shape[0], : shifted.shape[1]]
        assert abs(np.corrcoef(pair.ravel(), shifted.ravel())[0, 1]) < 0.03
    assert all(0 <= uniform(seed, 3) < 1 for seed in (-1, 2**31, 2**63, 2**64 - 1, 2**80))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_draws_at_the_edges(size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    possible = sorted({size // 3, size // 2, size - 1 - size // 5})
    logits[possible] = 0.1
    assert draw(logits, 1.0, 0.0, Scratch(size)) == possible[0]
    assert draw(logits, 1.0, 1 - 2.0**-53, Scratch(size)) == possible[-1]
    assert {draw(logits, 1.0, chance / 97, Scratch(size)) for chance in range(97)} == set(possible)


@pytest.mark.parametrize("parameters", [{}, {"frequency_penalty": 1.0}, {"ignore_eos": True}])
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_mask_leaves_the_distribution(parameters: dict[str, object], share: float) -> None:
    allowed = np.random.default_rng(2).random(SIZE) < share
    allowed[BEST_FIRST[40]] = True
    alone = LOGITS.copy()
    alone[~allowed] = -np.inf
    chosen = sampler(**parameters).choose(LOGITS, allowed)
    sampler(frequency_penalty=2.0, temperature=3.0).choose(-LOGITS, ~allowed)
    assert allowed[chosen]
    assert sampler(**parameters).choose(LOGITS, allowed) == chosen
    if not parameters:
        assert sampler().choose(alone) == chosen


def test_top_n_sigma_draws_within_so_many_standard_deviations() -> None:
    floor = LOGITS.max() - 1.0 * LOGITS.std()
    assert set(samples(2_000, top_n_sigma=1.0, temperature=5.0)) <= set(np.flatnonzero(floor <= LOGITS))
    assert len(set(samples(500, top_n_sigma=1.5, temperature=5.0))) > 5
    banned = {BEST_FIRST[0]: -np.inf}
    assert BEST_FIRST[0] not in samples(200, top_n_sigma=0.01, logit_bias=banned)


def test_xtc_leaves_out_the_top_choices_except_the_last() -> None:
    logits = np.full(SIZE, -9.0, np.float32)
    logits[[4, 5, 6, 7]] = [3.0, 2.5, 2.0, 0.0]  # 0.47, 0.29, 0.17, 0.02
    assert set(samples(500, logits, xtc_probability=1.0, xtc_threshold=0.1, min_p=0.01)) == {6, 7}
    assert set(samples(200, logits, xtc_probability=1.0, xtc_threshold=0.4)) >= {4, 5}, (
        "only one token is above the threshold"
    )
    often = samples(4_000, logits, xtc_probability=0.5, xtc_threshold=0.1, top_k=3)
    assert 0.45 < Counter(often)[4] / len(often) / 0.51 / 0.5 < 1.2, (
        "the best token is left out half of the time"
    )
    assert set(samples(50, logits, xtc_probability=1.0, temperature=0)) == {4}, "greedy is greedy"


def test_min_tokens_forbids_every_end_and_ignore_eos_forbids_no_stop_token() -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[[2, 10, 77]] = [30.0, 20.0, 25.0]
    found = samples(6, logits, temperature=0, min_tokens=3, stop_tokens=(77,))
    assert found[3:] == [2, 2, 2]
    assert not {2, 10, 77} & set(found[:3])
    assert sampler(output=(5, 5), temperature=0, min_tokens=3).choose(logits) not in (2, 10)
    for least, is_stop in ((0, True), (1, False)):
        chooser = sampler(temperature=0, ignore_eos=True, stop_tokens=(77,), min_tokens=least)
        assert (chooser.choose(logits) == 77) == is_stop
        assert chooser.choose(logits) not in (2, 10)


def test_bad_words_are_not_completed() -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[[20, 21, 22]] = [9, 8, 7]
    never = {"temperature": 0, "bad_words": ((20, 20), (21, 20, 21), (22,))}
    assert samples(4, logits, **never) == [20, 21, 20, 0]
    assert sampler(output=(20,), **never).choose(logits) == 21, "a resumed output counts"
    assert sampler(prompt=(20,), **never).choose(logits) == 20, "the prompt does not count"


@pytest.mark.parametrize("seed", range(9))
def test_dry_penalties_equal_those_of_llama_cpp(vocabulary: Vocabulary, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = [vocabulary.encode(text, add_special=False, parse_special=False)[0] for text in "abcde\n:"]
    weights = rng.choice([[9, 9, 9, 5, 3, 1, 1], [1, 0, 0, 0, 0, 0, 0], [40, 1, 0, 0, 0, 1, 0]])
    penalty = DryPenalty(
        multiplier=rng.choice([0.5, 1.0, 3.0]),
        base=rng.choice([1.0, 1.75, 3.0]),
        allowed_length=rng.choice([1, 2, 4]),
        last_n=rng.choice([None, 12, 60]),
        breakers=(("\n", ":", "*"), ("ab", "never seen"), ("c",))[seed % 3],
    )
    breakers = [each.encode() for each in penalty.breakers]
    native = llama_cpp.llama_sampler_init_dry(
        vocabulary.native,
        penalty.multiplier,
        penalty.base,
        penalty.allowed_length,
        10_000 if penalty.last_n is None else penalty.last_n,
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )
    size = vocabulary.vocab_size
    records = (llama_cpp.llama_token_data * size)()
    tokens = list(rng.choices(alphabet, weights, k=rng.choice([0, 1, 9, 80, 300])))
    ours = DryRepetitions(penalty, tokens, functools.partial(vocabulary.piece, special=True))
    for token in tokens:
        llama_cpp.llama_sampler_accept(native, token)
    for _ in range(80):
        for token in range(size):
            records[token] = llama_cpp.llama_token_data(token, 0.0, 0.0)
        array = llama_cpp.llama_token_data_array(records, size, -1, False)
        llama_cpp.llama_sampler_apply(native, ctypes.byref(array))
        # A larger penalty forbids a token in any case, and llama.cpp's own powers may be infinite.
        expected = {records[i].id: max(records[i].logit, -1e30) for i in range(size) if records[i].logit}
        logits = np.zeros(size, np.float32)
        ours.apply(logits)
        found = {int(token): max(logits[token], -1e30) for token in np.flatnonzero(logits)}
        assert found == pytest.approx(expected)
        token = rng.choices(alphabet, weights)[0]
        ours.accept(token)
        llama_cpp.llama_sampler_accept(native, token)
    llama_cpp.llama_sampler_free(native)


def test_dry_reads_the_text_of_each_token_once() -> None:
    num_reads = Counter[int]()

    def piece(token: int) -> bytes:
        num_reads[token] += 1
        return b"word"

    found = DryRepetitions(DryPenalty(multiplier=1.0), [7] * 100_000, piece)
    logits = np.zeros(20, np.float32)
    found.apply(logits)
    found.accept(7)
    assert np.flatnonzero(logits).tolist() == [7]
    assert num_reads == {7: 1}


class _Comparisons(int):
    num = 0

    def __eq__(self, other: object) -> bool:
        _Comparisons.num += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("pattern", [(1,), (1, 2), (1, 1, 2), (1, 1, 1, 1, 1, 1, 1, 1, 1, 2)])
def test_common_suffixes_take_linear_work(pattern: tuple[int, ...]) -> None:
    tokens = [_Comparisons(word) for word in pattern * (3000 // len(pattern))]
    _Comparisons.num = 0
    found = common_suffixes(tokens)
    assert _Comparisons.num <= 2 * len(tokens)
    assert found[-1 - len(pattern)] == len(tokens) - len(pattern)


LOGIT = st.floats(-40, 40, width=32) | st.sampled_from([0.0, 1.0, -np.inf])
ANY_LOGITS = hnp.arrays(np.float32, st.integers(1, 700), elements=LOGIT).filter(
    lambda found: bool(found.max() > -np.inf)
)

LARGE = np.random.default_rng(3).normal(0, 2.5, 152_000).astype(np.float32)
LARGE[1000:1020] += np.linspace(24, 12, 20, dtype=np.float32)


@settings(max_examples=100)
@given(ANY_LOGITS, st.floats(0, 0.999))
def test_a_nucleus_has_its_share_and_no_token_too_many(logits: np.ndarray, share: float) -> None:
    found = nucleus_of(logits, share, Scratch(len(logits)))
    weights = np.exp(logits - logits.max())
    inside, whole = weights[found].sum(dtype=np.float64), weights.sum(dtype=np.float64)
    rounding = 1e-6 * whole
    assert len(found) == len(set(found)) >= 1
    assert inside >= share * whole - rounding
    assert len(found) == 1 or inside - weights[found].min() < share * whole + rounding
    outside = np.delete(weights, found)
    assert not len(outside) or outside.max() <= weights[found].min()


@pytest.mark.parametrize("parameters", [{"top_p": 0.95}, {"top_p": 0.9999}, {"top_k": 50}, {"min_p": 0.02}])
def test_a_large_vocabulary_is_cut_as_by_a_plain_reference(parameters: dict[str, float]) -> None:
    sampling = Sampling(seed=1, **parameters)
    truncated = Truncation(sampling, Scratch(len(LARGE))).apply(LARGE)
    weights = np.exp(LARGE.astype(np.float64) - LARGE.max())
    order = np.argsort(-weights)
    if "top_p" in parameters:
        share = weights[order].cumsum() / weights.sum()
        count = int(share.searchsorted(parameters["top_p"])) + 1
    elif "top_k" in parameters:
        count = int(parameters["top_k"])
    else:
        count = int((weights >= parameters["min_p"]).sum())
    assert set(truncated.tokens) == set(order[:count])
    assert np.array_equal(truncated.logits, LARGE[truncated.tokens])


def test_edges_of_truncation() -> None:
    assert list(above(np.float32([1, 3, 2]), 1.0)) == [1, 2]
    assert not len(above(np.float32([1, 3, 2]), 3.0))
    assert list(nucleus_of(np.zeros(10, np.float32), 0.3, Scratch(10))) == [0, 1, 2], "the first of equals"
    assert list(nucleus_of(np.float32([0, 9, 0, 9, 9]), 0.6, Scratch(5))) == [1, 3]
    assert 40 <= len(best_tokens(LARGE, 40)) < 120, "few candidates are left of a large vocabulary"
