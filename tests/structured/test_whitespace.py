"""White space between tokens: none, or where JSON allows it."""

import json

import pytest

from openai_cpu_server.structured.options import Options, Whitespace
from tests.structured.making import schema_to_lark
from tests.structured.oracle import Sampler, accepts

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "string"}},
    "required": ["a"],
}
VALUE = {"a": [1, 2], "b": "x y", "c": {"d": None}}
FLEXIBLE = Options(whitespace=Whitespace.FLEXIBLE)


def test_compact_is_the_default():
    assert accepts(SCHEMA, json.dumps(VALUE, separators=(",", ":")))
    assert not accepts(SCHEMA, json.dumps(VALUE))


@pytest.mark.parametrize(
    "text",
    [
        *(json.dumps(VALUE, **style) for style in ({}, {"indent": 2}, {"indent": "\t"})),
        *('{ "a" : [ ] }', '{"a":[]\n}', '{\r\n"a"\t:\t[ 1 , 2 ]}', '{"a":[],"x": { } }', '{"a":[1,2]}'),
    ],
)
def test_flexible_takes_every_usual_style_and_blanks_around_all_punctuation(text):
    assert accepts(SCHEMA, text, FLEXIBLE)


@pytest.mark.parametrize(
    "text", ['{"a":[1 2]}', '{"a ":[]}', '{"a":[1,,2]}', '{"a":[] "b":"x"}', '{"a":[' + " " * 200 + "]}"]
)
def test_blanks_separate_nothing_and_end_somewhere(text):
    assert not accepts(SCHEMA, text, FLEXIBLE)


def test_drawn_sentences_of_both_are_json(rng):
    for options in (Options(), FLEXIBLE):
        sampler = Sampler(schema_to_lark(SCHEMA, options))
        drawn = [text for _ in range(20) if (text := sampler.draw(rng))]
        assert drawn
        assert all(isinstance(json.loads(text), dict) for text in drawn)
