"""Tables of PDFs keep their rows, in whatever order they were drawn."""

from __future__ import annotations

import pytest

from openai_cpu_server.reader.documents.read import document_parts
from tests.pdfs import drawn_pdf

Drawn = list[tuple[float, float, str]]
TABLE = [["Item", "Pieces", "Sum"], ["Pears, green", "3", "4.50"], ["Wine of Rome", "12", "96.00"]]
ROWS = "Item | Pieces | Sum\nPears, green | 3 | 4.50\nWine of Rome | 12 | 96.00"
LEFT, HIGH = (72, 200, 300), (700, 684, 668)


def cells(order: str = "rows") -> Drawn:
    found = [(LEFT[x], HIGH[y], TABLE[y][x]) for y in range(3) for x in range(3)]
    return found if order == "rows" else sorted(found, key=lambda cell: (cell[0], -cell[1]))


def words(drawn: Drawn) -> Drawn:
    """Draw each word by itself, as many programs do."""
    found: Drawn = []
    for x, y, text in drawn:
        for word in text.split():
            found.append((x, y, word))
            x += 5.6 * len(word) + 3
    return found


def read(drawn: Drawn) -> str:
    (text,) = document_parts(drawn_pdf(*drawn), most_chars=100_000).parts
    assert isinstance(text, str)
    return text.removeprefix("[Page 1]\n")


BEFORE: Drawn = [
    (72, 750, "A long sentence stands before the table of this page."),
    (72, 736, "It ends here."),
]
BEHIND: Drawn = [(72, 600, "The sum of all this is 100.50 with taxes.")]
PROSE = ["These are the words of a column that", "is as wide as those of a newspaper,", "and goes on below."]


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        pytest.param(cells(), ROWS, id="by rows"),
        pytest.param(cells("columns"), ROWS, id="by columns"),
        pytest.param(words(cells("columns")), ROWS, id="by words"),
        pytest.param(cells()[::-1], ROWS, id="from its end"),
        pytest.param(
            [*BEFORE, *cells("columns"), *BEHIND],
            f"{BEFORE[0][2]}\n{BEFORE[1][2]}\n{ROWS}\n{BEHIND[0][2]}",
            id="between sentences",
        ),
        pytest.param(
            [cell for cell in cells("columns") if cell[2] not in ("Pieces", "12", "96.00")],
            "Item |  | Sum\nPears, green | 3 | 4.50\nWine of Rome",
            id="with empty cells",
        ),
        pytest.param(
            [
                *cells("columns"),
                (72, 656, "(of last year)"),
                (72, 640, "Salt"),
                (200, 640, "1"),
                (300, 640, "2"),
            ],
            f"{ROWS}\n(of last year)\nSalt | 1 | 2",
            id="with a cell of two lines",
        ),
        pytest.param(
            [(x, y, text) for x in (72, 320) for y, text in zip(HIGH, PROSE, strict=True)],
            "\n".join([*PROSE, *PROSE]),
            id="two columns of a newspaper",
        ),
    ],
)
def test_a_table_keeps_its_rows(drawn: Drawn, text: str) -> None:
    assert read(drawn) == text
