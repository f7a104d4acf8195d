"""Scores of lm-evaluation-harness over HTTP are those that plain llama.cpp computes."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.timeout(1800)]

HARNESS = "lm-eval[api]==0.4.13"
PAIRS = [
    *(["The capital of France is", f" {town}."] for town in ("Paris", "Berlin")),
    *(["Question: What is 2 + 2?\nAnswer:", answer] for answer in (" 4", " five, of course")),
    ["The cat sat on the mat because it was", " tired.\n"],
    ["Grüße aus", " Köln, wo der Dom steht – und 世界 auch."],
    ["def add(a, b):\n    return", " a + b\n"],
    ["A sentence that is over.", "<|im_end|>"],
    [
        "Once upon a time there was a king.",
        " He had three daughters, and the youngest was so beautiful that.",
    ],
]
TEXTS = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    "def f(x):\n    return x * x\n",
    "Ein kurzer Satz.",
]

_HARNESS = """
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
url, pairs, texts = json.load(sys.stdin)
options = dict(tokenizer_backend="remote", num_concurrent=%d, batch_size=%d)
model = LocalCompletionsAPI(base_url=url, model="smollm2", **options)
instances = [Instance("loglikelihood", {}, tuple(pair), i) for i, pair in enumerate(pairs)]
scores = model.loglikelihood(instances, disable_tqdm=True)
rolling = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]
print(json.dumps([scores, model.loglikelihood_rolling(rolling, disable_tqdm=True)]))
"""
_PLAIN = """
import json, sys
import llama_cpp
import numpy as np
from llama_cpp import Llama
default_params = llama_cpp.llama_model_default_params
def unpacked_params():  # repacked weights round differently
    params = default_params()
    params.use_extra_bufts = False
    return params
llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = unpacked_params
path, pairs, texts = json.load(sys.stdin)
model = Llama(path, n_ctx=512, n_batch=512, logits_all=True, flash_attn=True, use_mmap=True, verbose=False)
def tokens(text):
    return model.tokenize(text.encode(), add_bos=False, special=True)
def score(context, continuation):
    model.reset()
    model.eval(context + continuation)
    logits = np.array(model.scores[len(context) - 1 : len(context) + len(continuation) - 1], np.float64)
    logits -= logits.max(1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    greedy = logits.argmax(1).tolist() == continuation
    return float(logits[np.arange(len(continuation)), continuation].sum()), greedy
scores = []
for context, continuation in pairs:
    whole, prefix = tokens(context + continuation), tokens(context)
    scores.append(score(whole[: len(prefix)], whole[len(prefix) :]))
print(json.dumps([scores, [score([model.token_bos()], tokens(text))[0] for text in texts]]))
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run([python, "-m", "pip", "install", "-q", HARNESS], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{HARNESS} cannot be installed: {done.stderr[-200:]}")
    return python


def run_program(python: Path | str, program: str, *inputs: object) -> list[list[object]]:
    done = subprocess.run([python, "-c", program], input=json.dumps(inputs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("num_concurrent", "batch_size", "options"),
    [(1, 1, ()), (4, 1, ("--max-seqs", "1")), (1, 4, ("--max-seqs", "1"))],
)
def test_scores_are_those_of_plain_llama_cpp(
    harness: Path, smollm2: Path, num_concurrent: int, batch_size: int, options: tuple[str, ...]
) -> None:
    """Own kernels, repacking and several texts in one step round differently, so all are switched off."""
    plain_scores, plain_rolling = run_program(sys.executable, _PLAIN, str(smollm2), PAIRS, TEXTS)
    exact = ("--kernels", "off", "--repack", "off", *options)
    with ServerProcess("--model", f"smollm2={smollm2}", *exact) as server:
        url = server.url + "/v1/completions"
        scores, rolling = run_program(harness, _HARNESS % (num_concurrent, batch_size), url, PAIRS, TEXTS)
    assert [score for score, _ in scores] == pytest.approx([score for score, _ in plain_scores], abs=1e-3)
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in plain_scores]
    assert rolling == pytest.approx(plain_rolling, abs=1e-3)
