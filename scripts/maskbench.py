#!/usr/bin/env python3
"""Measures how many real schemas are enforced exactly, and at what cost.

    scripts/maskbench.py FILE [--model GGUF] [--order schema|any] [--whitespace compact|flexible] [--failures]

FILE: JSON lines, gzipped or not: {"name", "schema", "tests": [{"valid", "data"}]}. A case passes if its
schema compiles, and the grammar accepts every valid instance (as `json.dumps` writes it, in the grammar's
white space) to the end and rejects every invalid one. The server's grammars put properties in the schema's
order, others in any, so both kinds are measured unless one is chosen. Times are CPU times of one thread.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import gzip
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.results import percentile
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.grammar.compile import grammar_tokenizer
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import Options, PropertyOrder, UnsupportedSchema, Whitespace

VOCABULARY = 32_000


@dataclass
class Result:
    cases: int = 0
    passed: int = 0
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    rejects_valid: int = 0
    accepts_invalid: int = 0
    too_complex: int = 0
    compile_s: list[float] = field(default_factory=list)
    convert_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class _Vocabulary:
    bos_token_id = None

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens, self.eos_token_id, self.special_token_ids = tokens, end, [end]

    def __call__(self, text: bytes | str) -> list[int]:
        """Unused, because the benchmark tokenises greedily."""
        return []


def tokenizer_of_text(cases: list[dict], size: int = VOCABULARY) -> LLTokenizer:
    counts: collections.Counter[str] = collections.Counter()
    for case in cases:
        words = json.dumps(case, ensure_ascii=False).split(" ")
        for word in words:
            counts.update(
                word[i:j] for i in range(min(len(word), 24)) for j in range(i + 2, min(i + 9, len(word) + 1))
            )
    pieces = [piece.encode() for piece, _ in counts.most_common(size - 257)]
    tokens, end = [*(bytes([i]) for i in range(256)), *pieces, b"</s>"], 256 + len(pieces)
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokens, end)), slices=LLTokenizer.json_slices())


class Bench:
    def __init__(self, tokenizer: LLTokenizer, options: Options) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self.result = Result()

    def run(self, case: dict) -> None:
        self.result.cases += 1
        try:
            with self._timed(self.result.compile_s):
                rules = compile_schema(case["schema"], self._options).rules
            with self._timed(self.result.convert_s):
                lark = Translation(rules).text()
            grammar = GrammarCheck(lark)
        except InvalidRequest as error:
            keyword = error.keyword if isinstance(error, UnsupportedSchema) else type(error).__name__
            self.result.refused[keyword] += 1
            self.result.failures.append(f"{case['name']}: refused: {error}")
            return
        self.result.passed += self._is_right(case, lark, grammar)
        self._time(case, lark)

    @contextlib.contextmanager
    def _timed(self, times_s: list[float]) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            times_s.append(time.process_time() - start)

    def _is_right(self, case: dict, lark: str, grammar: GrammarCheck) -> bool:
        right = True
        for test in case["tests"]:
            text = self._written(test["data"])
            try:
                fit = grammar.check(text)
            except InvalidRequest as error:
                right = False
                self.result.too_complex += 1
                self.result.failures.append(f"{case['name']}: too complex: {str(error)[:200]}")
                grammar = GrammarCheck(lark)
                continue
            if fit.fits == test["valid"]:
                continue
            right = False
            self.result.rejects_valid += test["valid"]
            self.result.accepts_invalid += not test["valid"]
            what = "rejects valid" if test["valid"] else "accepts invalid"
            place = f"{text[: fit.accepted][-50:]} ^ {text[fit.accepted :][:50]}"
            self.result.failures.append(f"{case['name']}: {what}: {place}")
        return right

    def _written(self, data: object) -> str:
        is_compact = self._options.whitespace is Whitespace.COMPACT
        return json.dumps(data, separators=(",", ":") if is_compact else None)

    def _time(self, case: dict, lark: str) -> None:
        result = self.result
        with self._timed(result.load_s):
            matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
        result.ready_s.append(result.compile_s[-1] + result.convert_s[-1] + result.load_s[-1])
        for test in case["tests"]:
            if test["valid"]:
                matcher.reset()
                self._masks(matcher, self._written(test["data"]))
            if matcher.is_error():
                return

    def _masks(self, matcher: LLMatcher, text: str) -> None:
        for token in self._tokenizer.greedy_tokenize(text):
            start = time.process_time()
            try:
                matcher.compute_bitmask()
            except ValueError:
                return
            self.result.mask_s.append(time.process_time() - start)
            if matcher.is_error() or not matcher.try_consume_tokens([token]):
                return


def report(result: Result, num_valid: int, num_invalid: int, vocabulary_size: int) -> str:
    refused = ", ".join(f"{n} {k}" for k, n in result.refused.most_common())
    share = 100 / max(result.cases, 1)
    rejected = 100 * result.rejects_valid / max(num_valid, 1)
    lines = [
        f"passed           {result.passed} of {result.cases} ({result.passed * share:.1f} %)",
        f"refused          {sum(result.refused.values())} ({refused or 'none'})",
        f"rejects valid    {result.rejects_valid} of {num_valid} instances ({rejected:.2f} %)",
        f"accepts invalid  {result.accepts_invalid} of {num_invalid} instances",
        f"too complex      {result.too_complex} instances",
        _times("compile", result.compile_s, "schema -> rules"),
        _times("convert", result.convert_s, "rules -> Lark"),
        _times("load", result.load_s, "Lark -> llguidance"),
        _times("ready", result.ready_s, "all three together"),
        _times("mask", result.mask_s, f"{len(result.mask_s)} tokens, vocabulary of {vocabulary_size}"),
    ]
    return "\n".join(lines)


def _times(name: str, values: list[float], what: str) -> str:
    if not values:
        return f"{name:16} none"
    mean, p50, p99 = statistics.mean(values), percentile(values, 50), percentile(values, 99)
    return f"{name:16} mean {mean * 1e3:.3f} ms, p50 {p50 * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms ({what})"


def read_cases(path: Path) -> list[dict]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", type=Path, help="GGUF with the vocabulary (default: made from FILE)")
    parser.add_argument("--order", choices=[o.value for o in PropertyOrder], help="default: both")
    parser.add_argument("--whitespace", choices=[w.value for w in Whitespace], default="compact")
    parser.add_argument("--failures", action="store_true", help="list them")
    arguments = parser.parse_args()
    cases = read_cases(arguments.file)
    if arguments.model:
        vocabulary = Vocabulary.open(arguments.model)  # the tokenizer must not outlive it
        tokenizer = grammar_tokenizer(vocabulary, for_many_masks=True)
    else:
        tokenizer = tokenizer_of_text(cases)
    valid = [t["valid"] for c in cases for t in c["tests"]]
    gc.freeze()  # the collector must not scan the cases while a schema is compiled
    orders = [PropertyOrder(arguments.order)] if arguments.order else list(PropertyOrder)
    for order in orders:
        options = Options(whitespace=Whitespace(arguments.whitespace), order=order)
        bench = Bench(tokenizer, options)
        for case in cases:
            bench.run(case)
        default = ", as the server has it" if order is Options().order else ""
        print(f"properties in {order.value} order{default}; white space {arguments.whitespace}")
        print(report(bench.result, sum(valid), len(valid) - sum(valid), tokenizer.vocab_size))
        print(*(bench.result.failures if arguments.failures else []), sep="\n")


if __name__ == "__main__":
    main()
