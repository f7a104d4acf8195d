"""Where a text stops fitting a grammar."""

from openai_cpu_server.llama.grammar.grammar_check import TextFit
from tests.structured.making import check_schema

SCHEMA = {
    "type": "object",
    "properties": {"rating": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["rating"],
}


def test_it_tells_where_a_text_stops_fitting():
    grammar = check_schema(SCHEMA)
    assert grammar.check('{"rating":5}') == TextFit(accepted=12, size=12, is_complete=True)
    assert grammar.check('{"rating":6}') == TextFit(accepted=10, size=12, is_complete=False)
    assert grammar.check('{"rating":5') == TextFit(accepted=11, size=11, is_complete=False)
    assert grammar.check("") == TextFit(accepted=0, size=0, is_complete=False)
