"""Our reader of GBNF beside the one that comes with llguidance: what each reads otherwise than it is meant.

    python -m tests.structured.gbnf_readers [FILE.gbnf ...]

It prints a line for each grammar of `test_gbnf_parser.py` that one of them refuses or reads wrongly, and for
each file; of a file, sentences are drawn from what one reads, and shown to what the other reads.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llguidance import gbnf_to_lark as llguidances

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from tests.structured.making import gbnf_to_lark
from tests.structured.oracle import Sampler
from tests.structured.test_gbnf_parser import GRAMMARS

Reader = Callable[[str], str]
READERS: dict[str, Reader] = {"ours": gbnf_to_lark, "llguidance's": llguidances.gbnf_to_lark}
_SENTENCES = 200


def verdict(reader: Reader, name: str) -> str:
    """Of one of the grammars whose sentences are known."""
    text, accepted, rejected = GRAMMARS[name]
    try:
        check = GrammarCheck(reader(text))
    except Exception as error:  # each refuses in its own way
        return f"refused: {str(error).splitlines()[0][:60]}"
    wrong = [x for x in accepted if not check.check(x).fits] + [x for x in rejected if check.check(x).fits]
    return f"wrong: {wrong[0]!r}" if wrong else "right"


def drawn(path: Path) -> str:
    """How many sentences of one are none of the other, both ways."""
    text = path.read_text()
    try:
        ours, others = (reader(text) for reader in READERS.values())
        return f"{_foreign(ours, others)}; {_foreign(others, ours)} the other way"
    except Exception as error:
        return f"refused: {str(error).splitlines()[0][:60]}"


def _foreign(source: str, other: str) -> str:
    sampler, check, rng = Sampler(source), GrammarCheck(other), random.Random(1)
    texts = [text for _ in range(_SENTENCES) if (text := sampler.draw(rng, longest=300)) is not None]
    return f"{sum(not _fits(check, text) for text in texts)} of {len(texts)} sentences not taken"


def _fits(check: GrammarCheck, text: bytes) -> bool:
    try:
        return check.check(text).fits
    except InvalidRequest:
        return False


def main(paths: Sequence[str]) -> None:
    for name in GRAMMARS:
        found = {who: verdict(reader, name) for who, reader in READERS.items()}
        if set(found.values()) != {"right"}:
            _say(name, "; ".join(f"{who} {what}" for who, what in found.items()))
    for path in map(Path, paths):
        _say(path.name, drawn(path))


def _say(name: str, found: str) -> None:
    sys.stdout.write(f"{name:32}{found}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
