"""Long words, in all ways of cutting texts that the vendored llama.cpp knows (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from openai_cpu_server.reader.pool import ReaderPool
from tests.llama.odd_models import rewritten
from tests.reader.conftest import DEMO, opened

RECURSIVE = "gpt-4o"
"""Vocabulary whose splitter is a regular expression of C++'s standard library."""
OTHERS = """
tekken deepseek-v3 default
a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx
deepseek-coder deepseek-llm deepseek-r1-qwen exaone exaone-moe exaone4 f2llmv2 falcon falcon-h1
falcon3 gemma4 gigachat glm4 glm5 gpt-2 gpt3-finnish granite-docling granite-embed-multi-311m
granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en
jina-v2-code jina-v2-de jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe
llama-bpe llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0 minerva-7b minicpm5 minimax-m2
modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe seed-coder
smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tiny_aya trillion ufakzeka
viking whitespace youtu
"""
RUNS = {
    "letters": "a",
    "capitals": "A",
    "digits": "7",
    "marks": "!",
    "blanks": " ",
    "lines": "\n",
    "CJK": "\u6f22",
    "accents": "\u0301",
    "base64": "aB3/",
}
LENGTHS = {"superbpe": 10_000}
"""Shorter texts, because its `(?=(\\d{3})+(?!\\d))` is quadratic: 100,000 digits exceed the reader's time."""
RAW = ["\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
"""Tokens of a vocabulary that takes UTF-8 without an encoding: the escape of blanks, and bytes."""


def read_all(pool: ReaderPool, name: str, folder: Path) -> None:
    fields = gguf.GGUFReader(DEMO).fields
    tokens, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    changes = {
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.model": "whitespace" if name == "whitespace" else "gpt2",
        "tokenizer.ggml.tokens": [*tokens[: -len(RAW)], *RAW],
        "tokenizer.ggml.token_type": [*types[:-256], *[int(gguf.TokenType.BYTE)] * 256],
    }
    model = opened(pool, rewritten(DEMO, folder / f"{name}.gguf", changes))
    deaths = pool.deaths
    for kind, text in RUNS.items():
        run = text * (LENGTHS.get(name, 100_000) // len(text))
        tokens = model.tokenizer.encode(run, add_special=False, parse_special=False)
        assert model.tokenizer.decode(tokens).strip() == run.strip(), (name, kind)
    assert pool.deaths == deaths
    model.close()


def test_long_words_with_a_recursive_splitter(pool: ReaderPool, tmp_path: Path) -> None:
    read_all(pool, RECURSIVE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS.split())
def test_long_words_with_other_splitters(pool: ReaderPool, name: str, tmp_path: Path) -> None:
    read_all(pool, name, tmp_path)
