"""The counts equal those of a parser, wherever the pieces of the text end."""

import json
import random

import pytest

from openai_cpu_server import json_size
from openai_cpu_server.errors import TooManyValues
from openai_cpu_server.json_size import MOST_NUMBERS, MOST_POINTS, MOST_TOKENS, check_json_size, size_of

ODD = ['"', "\\", "\\\\", '\\"', "{[:,]}", "é", "\n", "x" * 40, ""]


def value(chance, depth):
    kind = chance.randrange(6 if depth else 3)
    if kind == 0:
        return chance.choice([1, -2.5, None, True, 10**20])
    if kind in (1, 2):
        return "".join(chance.choices(ODD, k=chance.randrange(5)))
    if kind == 3:
        return {f"{chance.choice(ODD)}{i}": value(chance, depth - 1) for i in range(chance.randrange(5))}
    return [value(chance, depth - 1) for _ in range(chance.randrange(6))]


def points(parsed):
    if isinstance(parsed, str):
        return 1
    if isinstance(parsed, dict):
        return 3 + sum(1 + points(each) for each in parsed.values())
    return 1 + sum(map(points, parsed)) if isinstance(parsed, list) else 0


def commas(parsed):
    inner = list(parsed.values()) if isinstance(parsed, dict) else parsed if isinstance(parsed, list) else []
    return max(0, len(inner) - 1) + sum(map(commas, inner))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 100_000])
def test_counts_equal_those_of_a_parser(piece, monkeypatch):
    monkeypatch.setattr(json_size, "_PIECE", piece)
    chance = random.Random(7)
    for _ in range(200):
        parsed = value(chance, 4)
        size = size_of(json.dumps(parsed, ensure_ascii=chance.random() < 0.5, indent=2).encode())
        assert size.numbers == commas(parsed)
        assert size.points == points(parsed)


def test_marks_within_strings_are_text():
    prose = json.dumps({"text": 'He said: "well, [this] {is} it", and left. ' * 400_000}).encode()
    assert size_of(prose).points == 3 + 2
    check_json_size(prose)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b"[]"] * MOST_POINTS) + b"]",
        b"[" + b",".join([b"{}"] * (MOST_POINTS // 3 + 1)) + b"]",
        b"[" + b",".join([b'"a"'] * MOST_POINTS) + b"]",
        b"{" + b",".join([b'"k":1'] * MOST_POINTS) + b"}",
        b'{"a":' * MOST_POINTS,
        b"[" * 1_000_000,
        b'"' * 1_000_000,
        b"[" + b",".join([b"null"] * (MOST_NUMBERS + 2)) + b"]",
        b"[" + b"7" * 9_000_000 + b"]",
        b" " * 9_000_000,
    ],
)
def test_too_many_values_are_refused(text):
    with pytest.raises(TooManyValues, match=r"has more than [\d,]+ .*; send several smaller"):
        check_json_size(text)


def test_token_ids_may_be_more():
    ids = json.dumps({"input": [[5] * 244] * 2_048}).encode()
    check_json_size(ids, most_numbers=MOST_TOKENS)
    with pytest.raises(TooManyValues):
        check_json_size(ids)


def test_a_long_conversation_and_a_large_schema_pass():
    part = {"type": "input_text", "text": "some words, and: more"}
    check_json_size(json.dumps([{"type": "message", "role": "user", "content": [part]}] * 10_000).encode())
    check_json_size(json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(12_000)}}).encode())
