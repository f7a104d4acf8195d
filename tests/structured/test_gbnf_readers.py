"""Why GBNF is read here and not by what comes with llguidance. When this fails, look whether that still holds
(docs/measurements.md)."""

from __future__ import annotations

from tests.structured.gbnf_readers import READERS, verdict
from tests.structured.test_gbnf_parser import GRAMMARS

OTHERS_FAULTS = {
    "any": "wrong",
    "literals and classes": "wrong",
    "escapes": "refused",
    "escaped dash": "refused",
    "counts": "refused",
    "counted twice": "refused",
    "operators one after another": "refused",
    "zero times": "refused",
    "names that look alike": "refused",
}


def test_the_other_reader_misses_what_ours_reads() -> None:
    found = {name: verdict(READERS["llguidance's"], name).split(":")[0] for name in GRAMMARS}
    assert {name: what for name, what in found.items() if what != "right"} == OTHERS_FAULTS
    assert {verdict(READERS["ours"], name) for name in GRAMMARS} == {"right"}
