"""`openai-cpu-server grammar`: its output and its exit status."""

from __future__ import annotations

import io
import json
import sys

import pytest

from openai_cpu_server.cli.grammar import grammar
from openai_cpu_server.errors import StartupError
from tests.structured.making import schema_to_lark

SCHEMA = {
    "type": "object",
    "properties": {"rating": {"type": "integer", "minimum": 1, "maximum": 5}, "text": {"type": "string"}},
    "required": ["rating", "text"],
    "additionalProperties": False,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a schema."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def status(*arguments):
    try:
        grammar(arguments)
    except SystemExit as error:
        return error.code
    return 0


def test_a_schema_is_printed_as_the_servers_grammar(folder, capsys):
    assert status("schema.json") == 0
    assert capsys.readouterr().out == schema_to_lark(SCHEMA)
    assert status("schema.json", "--json-whitespace", "flexible", "--order", "any") == 0
    assert capsys.readouterr().out != schema_to_lark(SCHEMA)


def test_undeclared_properties_are_checked_as_in_the_standard(folder, capsys):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    (folder / "silent.json").write_text(json.dumps(schema))
    (folder / "more.json").write_text('{"a":1,"b":2}')
    assert status("silent.json") == 0
    assert capsys.readouterr().out == schema_to_lark({**schema, "additionalProperties": False})
    assert status("silent.json", "--json-additional", "open") == 0
    assert capsys.readouterr().out == schema_to_lark(schema)
    assert status("silent.json", "--check", "more.json") == 0
    assert status("silent.json", "--json-additional", "closed", "--check", "more.json") == 1


def test_a_repeated_item_does_not_fit_a_list_of_unique_items(folder, capsys):
    (folder / "set.json").write_text('{"items": {"type": "string"}, "type": "array", "uniqueItems": true}')
    (folder / "twice.json").write_text('["a","a"]')
    assert status("set.json", "--check", "twice.json") == 1
    first, expected = capsys.readouterr().out.splitlines()
    assert first == "twice.json:1:8: stops fitting at byte 7: '\"]'"
    assert expected == r"  expected one of \x20-! #-\x7f characters beyond ASCII"


def test_instances_fit_or_not(folder, capsys):
    (folder / "good.json").write_text('{"rating": 4, "text": "ü"}\n')
    (folder / "bad.json").write_text('{\n  "rating": 6\n}\n')
    (folder / "cut.json").write_text('{"rating":4')
    assert status("schema.json", "--check", "good.json", "bad.json", "cut.json") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "good.json: fits"
    assert lines[1] == "bad.json:2:13: stops fitting at byte 14: '6'"
    assert lines[2] == r"  expected one of \x09-\x0a \x0d \x20 1-5"
    assert lines[3] == "cut.json:1:12: stops fitting at byte 11: the end"


def test_columns_count_characters_and_offsets_bytes(folder, capsys):
    (folder / "bad.json").write_text('{"rating":4,"text":"ü",}')
    assert status("schema.json", "--json-whitespace", "compact", "--check", "bad.json") == 1
    assert "bad.json:1:23: stops fitting at byte 23: ',}'\n  expected '}'" in capsys.readouterr().out


def test_white_space_and_order_are_options(folder, capsys, monkeypatch):
    for text, option, value, codes in (
        ('{"rating": 4, "text": ""}', "--json-whitespace", "compact", (0, 1)),
        ('{"text":"","rating":4}', "--order", "any", (1, 0)),
    ):
        (folder / "instance.json").write_text(text)
        found = [status("schema.json", *more, "--check", "instance.json") for more in ((), (option, value))]
        assert tuple(found) == codes
    assert "--order any" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"rating":1,"text":""}')))
    assert status("schema.json", "--check", "-") == 0
    assert capsys.readouterr().out == "-: fits\n"


def test_grammar_files_are_checked(folder, capsys):
    (folder / "list.gbnf").write_text('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"\n')
    assert status("list.gbnf") == 0
    assert capsys.readouterr().out == "list.gbnf: a grammar of 2 rules\n"
    (folder / "list.txt").write_text("- a\n- b\n")
    assert status("list.gbnf", "--check", "list.txt") == 0
    (folder / "list.txt").write_text("- a\n-b\n")
    assert status("list.gbnf", "--check", "list.txt") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken.gbnf", 'root ::= "a"\n  b ::= x\n', "broken.gbnf:2:9: there is no rule 'x'"),
        ("broken.json", "{", "broken.json: not JSON"),
        ("list.json", "[]", "list.json: a schema is an object or a boolean"),
        ("odd.json", '{"pattern": "(a)\\\\1"}', "odd.json: /: 'pattern'"),
    ],
)
def test_wrong_files_are_named(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(StartupError) as caught:
        grammar([name])
    assert str(caught.value).startswith(message)


def test_wrong_use(folder):
    for arguments in (
        ["schema.json", "--order", "backwards"],
        [],
        ["missing.json"],
        ["-", "--check", "-"],
        ["schema.json", "--check", "missing.json"],
    ):
        with pytest.raises(StartupError):
            grammar(arguments)
