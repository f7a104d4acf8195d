"""Fields that constrain the answer's text, and the outputs that they permit and forbid."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from tests.api.resolving import chat, complete

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["a"],
    "additionalProperties": False,
}
HARD = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(x)\1"}}}


def json_schema(schema: dict[str, object] = SCHEMA, **fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}


def constraint(**fields: object) -> Constraint | None:
    """Constraint of a chat with these fields, which is that of a completion too."""
    whole, text = chat(**fields).requests[0], complete(**fields).requests[0]
    assert whole.constraint == text.constraint
    assert not whole.show_control_tokens
    return whole.constraint


def accepts(text: str, **fields: object) -> bool:
    shape = constraint(**fields)
    assert shape is not None
    assert (shape.opening, shape.triggers) == ((), ())
    return GrammarCheck(shape.grammar).check(text).fits


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        *(
            (fields, '{"a":3}', bad)
            for bad in ('{"a":6}', '{"a": 3}')
            for fields in (
                {"response_format": json_schema()},
                {"response_format": json_schema(strict=True, description="d")},
                {"response_format": json_schema(strict=False)},
                {"json_schema": SCHEMA},
                {"guided_json": SCHEMA},
                {"guided_json": json.dumps(SCHEMA)},
                {"structured_outputs": {"json": SCHEMA}},
                {"structured_outputs": {"json": json.dumps(SCHEMA)}},
                {"response_format": {"type": "text"}, "json_schema": SCHEMA},
            )
        ),
        ({"response_format": {"type": "json_object"}}, '{"x":[1]}', "[1]"),
        ({"structured_outputs": {"json_object": True}}, '{"x":[1]}', "[1]"),
        ({"regex": "a+b"}, "aab", "ba"),
        ({"guided_regex": "a+b"}, "aab", "ba"),
        ({"structured_outputs": {"regex": "a+b"}}, "aab", "ba"),
        ({"choice": ["yes", 'n"o']}, 'n"o', "no"),
        ({"guided_choice": ["yes", 'n"o']}, 'n"o', "no"),
        ({"structured_outputs": {"choice": ["yes", 'n"o']}}, 'n"o', "no"),
        ({"grammar": 'root ::= "x" [0-9]{2}'}, "x12", "x1"),
        ({"guided_grammar": 'root ::= "x" [0-9]{2}'}, "x12", "x1"),
        ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]{2}'}}, "x12", "x1"),
    ],
)
def test_each_field_constrains_the_output(fields: dict[str, object], good: str, bad: str) -> None:
    assert accepts(good, **fields)
    assert not accepts(bad, **fields)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_free_text_has_no_constraint(fields: dict[str, object]) -> None:
    assert constraint(**fields) is None


def test_white_space_is_an_option_of_the_server() -> None:
    call = chat(response_format=json_schema(), is_flexible=True)
    shape = call.requests[0].constraint
    assert shape is not None
    assert GrammarCheck(shape.grammar).check('{\n  "a" : 3\n}').fits


def test_every_choice_has_the_constraint() -> None:
    requests = chat(response_format=json_schema(), n=3).requests
    assert len({request.constraint.grammar for request in requests if request.constraint}) == 1


def test_a_header_of_limited_length_names_unenforced_keywords() -> None:
    name = "x-unenforced-schema-keywords"
    loose = chat(response_format=json_schema(HARD, strict=False)).headers
    assert loose == {name: "response_format.json_schema.schema.properties.a.pattern"}
    assert chat(response_format=json_schema(strict=False)).headers == {}
    schema = {"properties": {f"a,{i}": {"pattern": r"(x)\1", "type": "string"} for i in range(40)}}
    names = chat(response_format=json_schema(schema, strict=False)).headers[name].split(",")
    assert (len(names), names[-1]) == (33, "...")


WORDS = ("json", "choice", "tools", "regex", "grammar", "response_format", "caf\u00e9", "\x00")


@pytest.mark.parametrize(
    ("fields", "is_slow"),
    [
        ({"response_format": json_schema()}, True),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, True),
        ({"functions": [{"name": "f"}]}, True),
        ({"grammar": 'root ::= "a"'}, True),
        ({"choice": ["a"]}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"messages": [{"role": "user", "content": "long" * 20_000}]}, True),
        ({"response_format": {"type": "text"}}, False),
        *(({"messages": [{"role": "user", "content": f"My {word}, please"}]}, False) for word in WORDS),
    ],
)
def test_long_bodies_and_grammars_are_slow_to_resolve(fields: dict[str, object], is_slow: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    assert CHAT.read(json.dumps(body).encode(), lenient=False).is_slow is is_slow


def test_a_structural_tag_permits_free_text_between_structures() -> None:
    """Triggers may have characters with a meaning in regular expressions or grammars."""
    odd = '[x-y/z.*"\\'
    structures = [{"begin": f"{start}>", "schema": SCHEMA, "end": "</f>\n"} for start in ("<f=a", odd)]
    tagged = {"type": "structural_tag", "structures": structures, "triggers": ["<f=", odd]}
    first, second = '<f=a>{"a":1}</f>\n', f'{odd}>{{"a":5}}</f>\n'
    for text in ("", "a < b <f", f"so {first} and [x-y", second + second + first):
        assert accepts(text, response_format=tagged), text
    for text in ("a <f=", '<f=a>{"a":6}</f>\n', "<f=b>", f"{odd} "):
        assert not accepts(text, response_format=tagged), text


ANY = {"type": "any_text"}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 9}}
TAG = {"type": "tag", "begin": "[n]", "content": NUMBER, "end": ["[/n]", "[.]"]}
THINKS = {"type": "tag", "begin": "", "content": ANY, "end": "</t>"}
FORMATS: dict[str, tuple[dict[str, object], list[str], list[str]]] = {
    "any_text": ({**ANY, "excludes": ["no", "("]}, ["", "n(o"[:1], "yes"], ["no", "a (b)"]),
    "const_string": ({"type": "const_string", "value": 'a"\\'}, ['a"\\'], ["", "b"]),
    "json_schema": (NUMBER, ["7"], ["77", "x"]),
    "true": ({"type": "json_schema", "json_schema": True}, ["[1]"], ["[1"]),
    "grammar": ({"type": "grammar", "grammar": 'root ::= b+\nb ::= "x"'}, ["xx"], [""]),
    "regex": ({"type": "regex", "pattern": "a{2}"}, ["aa"], ["a"]),
    "or": ({"type": "or", "elements": [NUMBER, {"type": "const_string", "value": "z"}]}, ["1", "z"], ["1z"]),
    "sequence": (
        {"type": "sequence", "elements": [THINKS, TAG]},
        ["a < b</t>[n]1[/n]", "</t>[n]1[.]"],
        ["[n]1[/n]", "a</t>b</t>[n]1[.]", "</t>[n]12[.]"],
    ),
    "triggered_tags": (
        {"type": "triggered_tags", "triggers": ["[n"], "tags": [TAG], "excludes": ["!"]},
        ["", "a [m", "a[n]1[.]b[n]2[/n]"],
        ["[n", "!", "[n]1[.]!"],
    ),
    "one of them first": (
        {"type": "triggered_tags", "triggers": ["["], "tags": [TAG], "at_least_one": True},
        ["[n]1[.]", "[n]1[.] and [n]2[.] so"],
        ["", "a[n]1[.]"],
    ),
    "the first of them": (
        {"type": "triggered_tags", "triggers": ["["], "tags": [TAG], "stop_after_first": True},
        ["", "a", "a[n]1[.]"],
        ["a[n]1[.]b"],
    ),
    "one alone": (
        {"type": "triggered_tags", "triggers": ["["], "tags": [TAG], "stop_after_first": True,
         "at_least_one": True},
        ["[n]1[.]"],
        ["", "[n]1[.][n]1[.]"],
    ),
    "tags_with_separator": (
        {"type": "tags_with_separator", "tags": [TAG], "separator": ", "},
        ["", "[n]1[.]", "[n]1[.], [n]2[.], [n]3[/n]"],
        [", ", "[n]1[.][n]2[.]", "[n]1[.], "],
    ),
    "separated, at least one": (
        {"type": "tags_with_separator", "tags": [TAG], "separator": ",", "at_least_one": True},
        ["[n]1[.],[n]1[.]"],
        [""],
    ),
    "separated, the first": (
        {"type": "tags_with_separator", "tags": [TAG], "separator": ",", "stop_after_first": True},
        ["", "[n]1[.]"],
        ["[n]1[.],[n]1[.]"],
    ),
    "text in a tag ends before the tag does": (
        {"type": "tag", "begin": "<", "content": {"type": "triggered_tags", "triggers": ["["], "tags": [TAG]},
         "end": ">"},
        ["<>", "<a[n]1[.]b>"],
        ["<a>b>", "<a[n]1[.]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_structural_tags_can_be_nested(name: str) -> None:
    format_, good, bad = FORMATS[name]
    tag = {"type": "structural_tag", "format": format_}
    for text in good:
        assert accepts(text, response_format=tag), text
    for text in bad:
        assert not accepts(text, response_format=tag), text


@pytest.mark.parametrize("wrap", [json.dumps, dict])
def test_a_structural_tag_may_be_a_json_text(wrap: Callable[[object], object]) -> None:
    newer = {"type": "structural_tag", "format": TAG}
    structure = {"begin": "<", "schema": {"type": "null"}, "end": ">"}
    older = {"type": "structural_tag", "structures": [structure], "triggers": ["<"]}
    assert accepts("[n]1[.]", structured_outputs={"structural_tag": wrap(newer)})
    assert not accepts("[n]x[.]", structured_outputs={"structural_tag": wrap(newer)})
    assert accepts("so <null>", structured_outputs={"structural_tag": wrap(older)})
