"""A trained model over real text: our attention is as close to plain attention as that of ggml."""

from __future__ import annotations

import numpy as np
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.kernels.library import KernelLibrary
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.kernels.library import ROOT
from tests.kernels.pools import Doubles
from tests.llama.driver import feed, logprobs, open_slot

MODEL = ROOT / "model_assets" / "demo.gguf"
_TOKENS = 288
_CHUNK = 24


def predictions(tokens: list[int], **options: object) -> Doubles:
    """Return log-probabilities (positions, vocabulary) after each chunk, beside a second sequence."""
    backend = LlamaBackend.load(
        EngineOptions(model_path=str(MODEL), kv_tokens=1024, max_seqs=4, threads=1, **options),  # type: ignore[arg-type]
        lambda fraction: None,
    )
    found = np.zeros((_TOKENS // _CHUNK, backend.info.vocab_size))
    with open_slot(backend, 0, tokens, top_logprobs=backend.info.vocab_size), open_slot(backend, 1, tokens):
        for number, start in enumerate(range(0, _TOKENS, _CHUNK)):
            feed(backend, 1, start, tokens[start : start + _CHUNK])
            feed(backend, 0, start, tokens[start : start + _CHUNK - 1])
            last = start + _CHUNK - 1
            for token, logprob in logprobs(backend, 0, last, tokens[last : last + 1]):
                found[number, token] = logprob
    backend.close()
    return found


def divergence(found: Doubles, reference: Doubles) -> float:
    """The mean Kullback-Leibler divergence, in nats."""
    return float(np.mean(np.sum(np.exp(reference) * (reference - found), axis=1)))


@pytest.mark.thorough
def test_predictions_are_as_close_as_those_of_ggml(library: KernelLibrary) -> None:
    with Vocabulary.open(MODEL) as vocabulary:
        readme = (ROOT / "README.md").read_text()
        tokens = vocabulary.encode(readme, add_special=True, parse_special=False)[:_TOKENS]
    reference = predictions(tokens, flash_attention=False)
    theirs = predictions(tokens, kernels="off")
    ours = predictions(tokens, kernels="auto")
    assert divergence(ours, reference) < max(1.5 * divergence(theirs, reference), 1e-4)
    assert np.mean(ours.argmax(axis=1) == reference.argmax(axis=1)) >= 0.8
