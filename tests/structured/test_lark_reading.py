"""Lark grammars of clients: matching texts, their form in a call, and errors."""

import pytest

from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource, MadeGrammar, RefusedGrammar
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.compiler import grammar_maker
from openai_cpu_server.structured.lark.meaning import lark_rules
from tests.structured.making import check_rules
from tests.structured.oracle import check_texts

APPLY_PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""  # the grammar of the tool `apply_patch` of Codex
PATCH = "*** Begin Patch\n*** Update File: a b.py\n@@ def f\n-x = \"1\"\n+\ty = 'ü\\n'\n*** End Patch"
SUMS = """
?start: sum                              // left recursion, aliases and marks
?sum: product | sum "+" product -> add
    | sum "-" product           -> sub
!product.2: atom | product "*" atom
atom: NUMBER | "-" atom | "(" sum ")"
%import common (NUMBER, WS_INLINE)
%ignore WS_INLINE
"""
TEXTS = {
    "patch": (APPLY_PATCH, [PATCH, PATCH + "\n"], [PATCH[:-1], PATCH.replace("@@", "@"), "", PATCH + "\n\n"]),
    "sums": (SUMS, ["1", "1+2", " 1 - 2.5e3*(-3 + 4) ", "- -1"], ["", "1+", "1 2", "(1", "1**2"]),
    "words": (  # a terminal takes the longest match
        'start: NAME NAME\nNAME: /[a-z]+/\n%ignore " "',
        ["a b", "ab   c ", "  a b"],
        ["ab", "a", "a b c", "a1"],
    ),
    "greedy": ('start: /.+/ "x" | "y" /z*/ "a"', ["yza", "ya"], ["ax", "yz", "x"]),
    "lines": (  # the text after a terminal depends on its end: nothing else can follow a comment
        'start: (_NEWLINE | NAME "=" _NEWLINE)*\nNAME: /[a-z]+/\n'
        "_NEWLINE: (/\\n */ | COMMENT)+\nCOMMENT: /#[^\\n]*/",
        ["x=\ny=\n", "\nx=#c\n", ""],
        ["x=", "x=\ny"],
    ),
    "counts": (
        'start: A ~ 2..3 ["b"] "c"{2} ("d" | "e")* X~2\nA: "a"\n_B: "q"\nX: "x".."z"',
        ["aaccxy", "aaabccdedzz"],
        ["accxx", "aaaaccxx", "aacccxx", "aaccx"],
    ),
    "case": ('start: "Select"i WS /from|to/i\nWS: " "+', ["sELECT  FROM", "select To"], ["selectfrom"]),
    "regex": (
        r'start: /(?s:.)(?i)[[:upper:]]\x{41}(?-i:b)[^a-c\d]\.\/"/',
        ['\nqab-./"', 'xQAbé./"'],
        ['\nqaB-./"', 'x1ab-./"', 'xqaba./"', 'xqab7./"'],
    ),
    "circle": (
        'start: a\na: b "x" | "y"\nb: a "z" | "w"?',
        ["y", "x", "wx", "yzx", "wxzx"],
        ["", "zx", "yx"],
    ),
    "rounds that may be empty": (
        'start: (X? y)* "!"\ny: Y? | y "." \nX: /[a-m]+/\nY: /[f-z]+/',
        ["!", "ab!", "az!", "zaz!", "..!", "a.z.b!", "faz.!"],
        ["", "a", "A!", "!!", "a!z"],
    ),
    "hidden": ('start: pre? start "." | "e"\npre: "p"?', ["e", "e.", "pe.", "pe..", "ppe.."], ["pe", "ppe."]),
    "empty": ("start: /a*/", ["", "aa"], ["b"]),
    "strings": (
        'start: pair ("," pair)*\npair: ESCAPED_STRING ":" SIGNED_INT\n%import common.ESCAPED_STRING\n'
        "%import common.SIGNED_INT\n%import common.WS -> SPACE\n%ignore SPACE",
        ['"a\\"b" : -1', '"":1,\n"x":22'],
        ['"a":', '"a"1', '"a\n":1'],
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_texts_that_lark_reads_match(name: str) -> None:
    grammar, good, wrong = TEXTS[name]
    check_texts(check_rules(lark_rules(grammar)), good, wrong)


MAKE = grammar_maker(GrammarCheck)


def make_grammar(text: str, *, end: str = "", source: GrammarSource = GrammarSource.LARK) -> MadeGrammar:
    return MAKE(GrammarOrder(source=source, text=text, text_end=end))


def test_a_text_in_a_call_is_a_json_string() -> None:
    grammar = make_grammar(APPLY_PATCH)
    assert not grammar.is_raw
    good = '"*** Begin Patch\\n*** Add File: ü\\n+\\"\\\\\\t\\n*** End Patch"'
    wrong = ['"*** Begin Patch\n*** Add File: a\\n+\\n*** End Patch"', '"*** Begin Patch\\n*** Add', PATCH]
    check_texts(GrammarCheck(grammar.lark), [good], wrong)


@pytest.mark.parametrize(
    ("grammar", "end", "good", "wrong"),
    [
        (APPLY_PATCH, "\n</parameter>", [PATCH], [PATCH[:-1]]),
        (APPLY_PATCH, "</arg_value>", [PATCH, PATCH.replace("f", "</arg_valu")],
         [PATCH.replace("f", "</arg_value>")]),
        ('start: ("<" | "</" | "x" | ">" | LF)*\nLF: /\\n/', "</x>", ["</", "<</x\n>", "</<x>"],
         ["<</x>", "</x></"]),
        ("start: /a*b?/", "aba", ["a", "", "b"], ["ab", "aab"]),
    ],
)  # fmt: skip
def test_a_text_is_raw_before_a_mark_that_it_does_not_contain(
    grammar: str, end: str, good: list[str], wrong: list[str]
) -> None:
    raw = make_grammar(grammar, end=end)
    assert raw.is_raw
    check_texts(GrammarCheck(raw.lark), good, wrong)


def test_a_text_that_has_the_mark_in_any_case_is_a_json_string() -> None:
    check_texts(GrammarCheck(make_grammar('start: "</x>"', end="</x>").lark), ['"</x>"'], [])


def test_a_regular_expression_has_the_syntax_of_rust() -> None:
    grammar = make_grammar(r"(?i)select .+;", source=GrammarSource.RUST_REGEX)
    check_texts(GrammarCheck(grammar.lark), ['"SeLect \\t\\r;"'], ['"select \\n;"'])


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: a", "line 1, column 8: there is no rule 'a'"),
        ('begin: "a"', "there is no rule 'start'"),
        ('start: "a', "line 1, column 8: a string without its closing"),
        ('start: "a"\nstart: "b"', "line 2, column 1: 'start' is defined already"),
        ("start: A\nA: start", "line 2, column 4: a terminal cannot name the rule 'start'"),
        ('start: A\nA: B\nB: "x" A', "the terminal 'A' names itself"),
        ('start: s{"a"}\ns{x}: x', "line 1, column 9: templates are not supported"),
        ("%declare X\nstart: X", "'%declare' is not supported"),
        ("start: <|end|>", "control tokens cannot be named"),
        ("start: /a(/", "line 1, column 8: in /a(/, character 2: missing ')'"),
        ("start: /a/x", "the flag 'x' is not supported"),
        ('start: "\\q"', "unknown escape '\\q'"),
        ("%import other.X\nstart: X", "only terminals of the module 'common'"),
        ('start: start "a"', "no text matches"),
        ('start: /[a-z]+/ "b"', "no text matches"),
        ("start: " + "(" * 60 + '"a"' + ")" * 60, "more than 50 nested groups"),
        ('start: "a"' + "?" * 5_000, "nested too deep"),
        ("start: T0\n" + "".join(f'T{i}: T{i + 1} "a"\n' for i in range(900)) + 'T900: "a"',
         "nested too deep"),
        ("start: /a{1,50000}b{1,50000}/", "The grammar is too large: more than 1500 states of an automaton"),
        ("start: " + '"a" ' * 30_000, "more than 100000 characters"),
        ("start: A40\nA0: /a/\n" + "\n".join(f"A{n}: A{n - 1} A{n - 1}" for n in range(1, 41)),
         "The grammar is too large: more than 200000 characters"),
        ("start: " + " ".join(f'"{i}"' for i in range(1_001)), "more than 1000 terminals"),
        ("start: " + "|".join(f"/\\p{{L}}{i}/" for i in range(60)), "more than 20000 ranges of characters"),
        ('start: "a"\n' + "".join(f"%ignore /[a-z]{{1,{i}}}!/\n" for i in range(1, 99)),
         "line 34, column 1: more than 32 times '%ignore'"),
    ],
)  # fmt: skip
def test_errors_name_their_place(grammar: str, message: str) -> None:
    found = MAKE(GrammarOrder(source=GrammarSource.LARK, text=grammar))
    assert message in found.message
    assert found.code == "invalid_grammar"


DOUBLING = {
    "alternatives of a terminal": "start: T40\nT0: /a/\n"
    + "\n".join(f'T{n}: T{n - 1} "x" | T{n - 1} "y"' for n in range(1, 41)),
    "left recursion": "start: r0\n"
    + "\n".join(f'r{n}: r{(n + 1) % 16} "a{n}" | r{(n + 2) % 16} "c" | "b{n}"' for n in range(16)),
    "a long rule": "start: " + '"a" ' * 15_000,
    "many characters": "start: /" + "".join(chr(0x4E00 + n) for n in range(20_000)) + "/",
    "a long text in any case": 'start: "' + "\xe4" * 15_000 + '"i',
}


@pytest.mark.parametrize("name", DOUBLING)
def test_grammars_of_doubling_paths_end(name: str) -> None:
    """Shared parts are read once; otherwise these grammars would take longer than any test waits."""
    assert isinstance(
        MAKE(GrammarOrder(source=GrammarSource.LARK, text=DOUBLING[name])), MadeGrammar | RefusedGrammar
    )
