"""*sampling*: milliseconds of CPU time to choose a token from a large vocabulary, by parameters.

One thread does this for each sequence after each step, while the others wait.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Open
from openai_cpu_server.llama.sampler import Sampler, Scratch

_PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "top_k, top_p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "top_n_sigma": {"temperature": 0.8, "top_n_sigma": 1.0},
    "XTC": {"temperature": 0.8, "xtc_probability": 1.0},
    "frequency penalty": {"temperature": 0.8, "frequency_penalty": 0.5},
}
_LIKELY = np.linspace(24, 12, 40, dtype=np.float32)
"""Logits of the best tokens above the bulk, as of a model that is rather sure."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocabulary", type=int, default=262_144, help="tokens; 262,144 are Gemma's")
    parser.add_argument("--times", type=int, default=100)


def run(asked: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 2.5, asked.vocabulary).astype(np.float32)
    logits[random.integers(0, asked.vocabulary, len(_LIKELY))] += _LIKELY
    masks = {"": None, "any token of half of them, ": random.random(asked.vocabulary) < 0.5}
    scratch = Scratch(asked.vocabulary)
    for what, allowed in masks.items():
        for name, parameters in _PARAMETERS.items():
            opened = Open(0, Sampling(seed=7, **parameters), (1,))
            sampler = Sampler(
                opened, scratch, vocab_size=asked.vocabulary, end_tokens=frozenset({2}), piece=b"%d".__mod__
            )
            times = []
            for _ in range(asked.times):
                began_s = time.thread_time()
                sampler.accept(sampler.choose(logits, allowed))
                times.append(1000 * (time.thread_time() - began_s))
            sampler.close()
            print(f"{what}{name}: best {min(times):.3f} ms, median {statistics.median(times):.3f} ms")
