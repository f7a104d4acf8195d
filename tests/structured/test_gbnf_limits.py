"""Hostile grammars: read or refused by counting steps, in bounded memory, never by running out of stack."""

import pytest

from openai_cpu_server.structured.lark import conflicts
from openai_cpu_server.structured.lark.plan import Share, TooMuch, Work
from openai_cpu_server.structured.options import InvalidGrammar
from tests.structured.making import check_gbnf, gbnf_to_lark, peak_bytes
from tests.structured.oracle import check_texts


def rules(count, body, last, root="r0"):
    """Make a chain of rules. `body` is a format for the names of a rule and of the next one."""
    lines = [body.format(f"r{i}", f"r{i + 1}") for i in range(count)]
    return "\n".join([f"root ::= {root}", *lines, f"r{count} ::= {last}"])


def either(*alternatives):
    return "root ::= x root?\nx ::= " + " | ".join(alternatives)


MAZE = [f"r{i} ::= [{chr(0x100 + i)}] (r{i + 1} | r{i * 7 % 90} | r{i * 11 % 90})?" for i in range(90)]
HOSTILE = {
    "deep groups": "root ::= " + "(" * 500 + '"a"' + ")*" * 500,
    "too deep groups": "root ::= " + "(" * 50_000,
    "long chain of rules": rules(1_500, '{} ::= "a" {}', '"b"'),
    "long chain of names": rules(1_500, "{} ::= {}", '"b"'),
    "doubling": rules(200, '{0} ::= {1} "a" {1} | {1} "b"', "[a-z]?"),
    "many that may be empty": rules(1_500, "{} ::= {}?", '"b"', " ".join(f"r{i}" for i in range(1_500))),
    "huge counts": 'root ::= (("a"{1,1000000000}){1,1000000000} root?){1,1000000000}',
    "exponential automaton": "root ::= x root | x\nx ::= [ab]* [a] [ab]{18} [ab]?",
    "many classes": either(*(f"[{chr(i)}-{chr(i + 50)}]+" for i in range(200, 1_200))),
    "many words": either(*(f'"w{i}"' for i in range(6_000))),
    "very many words": either(*(f'"w{i}"' for i in range(20_000))),
    "too many symbols": "root ::= " + "." * 200_000,
    "conflicting words": either(*(f'"{"ab" * i}"' for i in range(1, 200))),
    "everything follows everything": "\n".join(["root ::= r0", *MAZE, 'r90 ::= "z"']),
    "long left recursion": rules(1_500, '{} ::= ""? {}', "r0"),
    "long class": "root ::= [" + "".join(map(chr, range(0x100, 0xC000))) * 2 + "]",
    "long literal of escapes": 'root ::= "' + "\\x41" * 24_000 + '"',
    "long literal beyond ASCII": 'root ::= "' + "é" * 99_000 + '"',
    "long literal in quotes": 'root ::= "\\"' + "x" * 99_000 + '" | [a-z]+',
    "long literal beside others": 'root ::= "' + "x" * 99_000 + '" root | [a-z]+ ";" root | ""',
    "long literal": 'root ::= "' + "x" * 99_000 + '"',
}
REFUSED = {
    "too deep groups": "nested groups",
    "long left recursion": "left recursion",
    "long class": "class of more than",
    "long literal beside others": "steps",
    "too many symbols": "symbols",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_translated_within_the_limit_or_refused(name):
    lark, reason = translate(name)
    assert bool(lark) == (name not in REFUSED)
    assert REFUSED.get(name, "") in reason


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, text in HOSTILE.items() if len(text) < 10_000])
def test_counted_steps_do_not_depend_on_earlier_translations(name):
    assert translate(name) == translate(name)


def translate(name):
    try:
        return gbnf_to_lark(HOSTILE[name]), ""
    except InvalidGrammar as error:
        return "", error.reason


@pytest.mark.slow  # tracing memory takes several times as long as the work
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_cost_little_memory(name):
    assert peak_bytes(lambda: gbnf_to_lark(HOSTILE[name])) < 50_000_000


def test_the_language_stays_if_the_search_for_conflicts_gives_up(monkeypatch):
    monkeypatch.setattr(conflicts, "MOST_WORK", 3)
    check_texts(check_gbnf('root ::= [a-z]+ [0-9]* root? | "abc" "def"'), ["abc12def"], ["abc_"])


def test_every_stage_counts_its_steps():
    grammar = 'root ::= "(" [a-z]+ ")" root? | "do" [a-z] word "." root?\nword ::= "else" | [0-9]{3,}'
    whole = Work()
    lark = gbnf_to_lark(grammar, work=whole)
    for allowed in range(0, whole.spent, 3):
        with pytest.raises(InvalidGrammar, match=f"more than {allowed} steps"):
            gbnf_to_lark(grammar, work=Work(allowed))
    assert gbnf_to_lark(grammar, work=Work(whole.spent)) == lark


def test_a_share_ends_before_the_whole():
    whole = Work(10)
    share = Share(whole, 3)
    share.spend(3)
    with pytest.raises(TooMuch):
        share.spend(1)
    assert whole.spent == 4
    with pytest.raises(InvalidGrammar):
        Share(whole, 100).spend(7)
