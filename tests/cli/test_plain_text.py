"""Numbers and tables for readers of a terminal."""

from __future__ import annotations

from openai_cpu_server.cli.plain_text import bytes_text, columns, count_text, printable


def test_numbers_have_three_digits() -> None:
    sizes = [bytes_text(num_bytes) for num_bytes in (0, 999, 1_000, 53_060_000, 4.6e9)]
    assert sizes == ["0 bytes", "999 bytes", "1.00 kB", "53.1 MB", "4.60 GB"]
    assert [count_text(n) for n in (7, 6_951_168, 7.24e9)] == ["7", "6.95 M", "7.24 B"]


def test_columns_have_no_trailing_blanks_and_control_characters_are_escaped() -> None:
    assert columns([("a", "1", ""), ("long", "22", "x")], right=(1,)) == "a      1\nlong  22  x"
    assert printable("ü\x1b[2J\n\u202e") == r"ü\x1b[2J\n\u202e"
