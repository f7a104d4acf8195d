"""Names and words of the package, the tests and the scripts. See docs/contributing.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.trees import PACKAGE, Source, all_files, package

CONVENTIONAL = {"logger", "main", "ROUTER"}
"""Names that each module of a kind has."""


def public_names(source: Source) -> Iterator[str]:
    """Yield classes, and the module's functions, constants and type aliases."""
    yield from (node.name for node in source.nodes(ast.ClassDef))
    for node in source.tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec"))):
                pass
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_a_public_name_is_defined_once() -> None:
    names = (name for source in package().values() for name in public_names(source))
    homes = Counter(name for name in names if not name.startswith("_") and name not in CONVENTIONAL)
    assert {name: count for name, count in homes.items() if count > 1} == {}, "rename one or make it private"


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_room_describes_its_callers_and_its_promises(room: str) -> None:
    docstring = ast.get_docstring(package()[room].tree) or ""
    assert len(docstring.splitlines()) >= 3, f"{room}/__init__.py has too short a docstring"


NO_BEGINNING = re.compile(
    r"(as|each|everything|has|how|is|its?|may|meanwhile|nobody|none|nothing|of|raises|so|somebody|such|that|their"
    r"|these|they|those|what|when|where|whether|which|who|whoever|whose)\b(?!-)",
    re.IGNORECASE,
)


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield docstrings, and strings after fields and constants, with their places."""
    for file, source in all_files().items():
        for node in source.nodes(ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                yield f"{file}:{node.lineno}", " ".join(node.value.value.split())


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = {place: text[:60] for place, text in docstrings() if NO_BEGINNING.match(text)}
    sent_to_models = {place for place in found if place.startswith("tests: e2e/test_frameworks.py")}
    assert found.keys() == sent_to_models, found


FOREIGN_WORDS = re.compile(
    r"(?<!here )\b(is|are|was|were) no (?!longer\b|more\b|fewer\b|less\b)"
    r"|\b([Nn]obody|[Ss]omebody)\b"
    r"|\b([Ee]verybody|told|anew|any more)\b"
    r"|\b(go|goes|went|gone|going) on (from|where|with)\b"
    r"|\b(die|dies|died) of\b|\bsays nothing\b|\bdoes not go with\b"
    r"|[,;:] for (it|they|there|this|these|(the|an?|no|each|all) \w+|\w+s) (is|are|was|has|have|can|does)\b"
    r"|(?:^|(?<=[.;:] ))(Who|What)\b(?!.*\?)|(?:^|; )so (with|`)"
)
"""Words of the dialect. Write "is not a number" for "is no number", "continue" for "go on from", "no longer"
for "any more", "crash with" for "die of", "because it is" for ", for it is"; and name the program or the
request, which is not a person."""
EXEMPT = {
    "answers.store",  # words of negation in questions
    "api.responses.conversation",  # an instruction to the model, as are those of transcriptions
    "api.transcriptions.to_params",
}


def test_a_text_has_no_words_of_the_dialect() -> None:
    """Check all strings of the package (errors, log lines, help), and the docstrings of tests and scripts."""
    rules = "tests: test_house.py"
    found = {
        place: text[:80]
        for place, text in docstrings()
        if FOREIGN_WORDS.search(text)
        if not place.startswith((rules, *(f"openai_cpu_server: {module}" for module in EXEMPT)))
    } | {
        f"{module}:{node.lineno}": text[:80]
        for module, source in package().items()
        if module not in EXEMPT
        for node in source.nodes(ast.Constant)
        if isinstance(text := node.value, str) and FOREIGN_WORDS.search(" ".join(text.split()))
    }
    assert found == {}


PARTICIPLES = {"told", "known", "given", "asked", "kept", "said", "begun", "heard", "recalled", "watched"}
WITHIN_NAMES = PARTICIPLES - {"watched"}
NAMES_OF_THE_USAGE_API = {"recalled_requests", "recalled_input_tokens", "recalled_output_tokens"}
"""Fields of `GET /v1/usage` and columns of its table."""


def bound_names(source: Source) -> Iterator[str]:
    """Yield the names of variables, parameters and fields where they are bound."""
    for name in source.nodes(ast.Name):
        if isinstance(name.ctx, ast.Store):
            yield name.id
    yield from (node.arg for node in source.nodes(ast.arg))
    yield from (node.attr for node in source.nodes(ast.Attribute) if isinstance(node.ctx, ast.Store))
    yield from (node.name for node in source.nodes(ast.ExceptHandler) if node.name)
    for pattern in source.nodes(ast.MatchAs, ast.MatchStar):
        yield pattern.name or ""


def defined_names(source: Source) -> Iterator[str]:
    definitions = source.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return (node.name for node in definitions)


def words(name: str) -> list[str]:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")


def test_a_name_is_a_noun_not_a_participle() -> None:
    found = {
        f"{file}: {name}"
        for file, source in all_files().items()
        for name in bound_names(source)
        if name.lstrip("_") in PARTICIPLES
    }
    assert found == set(), "use a noun, such as event; msgspec.field(name=...) renames a field of JSON"


def test_no_name_of_the_package_contains_a_participle() -> None:
    """Tests and scripts may: what a test expects is a sentence."""
    found = {
        f"{module}: {name}"
        for module, source in package().items()
        for name in (*bound_names(source), *defined_names(source))
        if not WITHIN_NAMES.isdisjoint(words(name)) and name not in NAMES_OF_THE_USAGE_API
    }
    assert found == set(), "name the thing: num_reserved, output_limit, adapters_requested"


DIALECT = {"nobody", "somebody", "everybody", "told", "tells", "said", "says", "asked", "asks", "who", "anew"}


def test_a_function_or_class_has_no_words_of_the_dialect_in_its_name() -> None:
    found = {
        f"{file}: {name}"
        for file, source in all_files().items()
        for name in defined_names(source)
        if not DIALECT.isdisjoint(words(name))
    }
    assert found == set(), "name the program or the request, and what it reports or sends"


OLD_NAMES = re.compile(
    "_*("
    "Ask|Asked.*|as_ask|AskOnItsWay|asking|asks|Attendance|blind|borders|Claim|Cohort|"
    "cohorts|EndedRequests|Entrance|Expectations|Family|FAREWELL_S|FolderShelf|GrantTurn|"
    "HeldBody|Hint|Hints|KeptStream|kept_streams|last_words|Lease|Listed|MediaRows|Medium|"
    "MESSAGE_REFUSALS|ModelContext|outlook|Placement|RecalledAnswer|Refusal|Refusals|"
    "RequestCarrier|RouteGuard|RouteRoom|RouteRow|Said|Sender|sent_items|ServerParts|"
    "Several|Shelved|ShortenTurn|ShownPart|Some|SourcedItem|StepFeed|StepShown|StopShield|"
    "Thoughts|Ticket|TIER_HINT|ToldProgress|Toolbox|ToolRounds|Trial|TurnBack|unheeded|"
    "UNKEPT|WaitingCall|Watcher|Whole"
    ")"
)


def test_an_old_name_does_not_return() -> None:
    """The field's words took their places, such as `GenerationParams` for `Ask`. Files have names, too."""
    found = {
        f"{file}: {name}"
        for file, source in all_files().items()
        for name in (
            *bound_names(source),
            *defined_names(source),
            *re.split(r"\W+", file.removesuffix(".py")),
        )
        if OLD_NAMES.fullmatch(name)
    }
    assert found == set()
