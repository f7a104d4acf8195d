"""Numbers and tables for people."""

from __future__ import annotations

import pytest

from openai_cpu_server.cli.plain_text import bytes_text, columns, count_text, harmless


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, "0 bytes"), (999, "999 bytes"), (1_000, "1.00 kB"), (53_060_000, "53.1 MB"), (4.6e9, "4.60 GB")],
)
def test_bytes(num_bytes: float, expected: str) -> None:
    assert bytes_text(num_bytes) == expected


def test_counts() -> None:
    assert [count_text(n) for n in (7, 6_951_168, 7.24e9)] == ["7", "6.95 M", "7.24 B"]


def test_columns_have_no_trailing_blanks() -> None:
    assert columns([("a", "1", ""), ("long", "22", "x")], right=(1,)) == "a      1\nlong  22  x"


def test_nothing_invisible_reaches_a_terminal() -> None:
    assert harmless("ü\x1b[2J\n\u202e") == r"ü\x1b[2J\n\u202e"
