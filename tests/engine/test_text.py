"""Text comes out whole: characters, tokens, and nothing of a stop string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.engine.output import ReleasedText, TextStream


def stream(pieces: list[bytes], *stop: str) -> list[ReleasedText]:
    text = TextStream(stop)
    releases = []
    for piece in pieces:
        releases.append(text.push(piece))
        if releases[-1].stopped:
            return releases
    return [*releases, text.flush()]


def shown(releases: list[ReleasedText]) -> str:
    return "".join(r.text for r in releases)


def test_plain_tokens_pass_at_once() -> None:
    assert stream([b"Hel", b"lo"]) == [ReleasedText(1, "Hel"), ReleasedText(1, "lo"), ReleasedText(0, "")]


def test_a_character_in_parts_is_held_until_whole() -> None:
    assert stream([b"\xf0\x9f", b"\x98", b"\x80!"])[:3] == [
        ReleasedText(0, ""),
        ReleasedText(0, ""),
        ReleasedText(3, "😀!"),
    ]


def test_an_unfinished_character_at_the_end_is_replaced() -> None:
    assert shown(stream([b"a", b"\xe2\x82"])) == "a\ufffd"


def test_bytes_that_are_no_text_do_not_hold_up_what_follows() -> None:
    assert stream([b"\x80\x80", b"a"])[:2] == [ReleasedText(1, "\ufffd\ufffd"), ReleasedText(1, "a")]


def test_a_stop_string_ends_the_text_before_it() -> None:
    assert stream([b"one", b" STOP", b" two"], "STOP") == [
        ReleasedText(1, "one"),
        ReleasedText(1, " ", stop="STOP"),
    ]


def test_a_stop_string_over_token_borders_never_leaks() -> None:
    releases = stream([b"one S", b"TO", b"P two"], "STOP")
    assert releases == [ReleasedText(0, ""), ReleasedText(0, ""), ReleasedText(1, "one ", stop="STOP")]


def test_the_beginning_of_a_stop_string_is_shown_when_it_was_none() -> None:
    assert stream([b"ST", b"AR"], "STOP")[:2] == [ReleasedText(0, ""), ReleasedText(2, "STAR")]


def test_the_earliest_of_several_stop_strings_counts() -> None:
    assert stream([b"a-b+c"], "+", "-") == [ReleasedText(1, "a", stop="-")]


def test_a_stop_string_within_one_longer_token() -> None:
    assert stream([b"x\n\nyz"], "\n\n") == [ReleasedText(1, "x", stop="\n\n")]


def test_a_stop_of_several_bytes_per_character() -> None:
    assert shown(stream([b"gut \xe2", b"\x9c", b"\x93 ja"], "✓")) == "gut "


def test_tokens_without_text_are_released_with_the_next() -> None:
    assert stream([b"", b"a"])[:2] == [ReleasedText(1, ""), ReleasedText(1, "a")]


def test_a_release_never_splits_a_character_before_a_possible_stop() -> None:
    releases = stream([b"\xc3", b"\xa9 S", b"x"], "STOP")
    assert releases[:3] == [ReleasedText(0, ""), ReleasedText(0, ""), ReleasedText(3, "é Sx")]


@given(st.lists(st.binary(max_size=5), max_size=20), st.lists(st.text("ab\u00e9", min_size=1, max_size=4)))
def test_the_whole_is_the_decoded_sum_of_its_parts_up_to_the_stop(
    pieces: list[bytes], stop: list[str]
) -> None:
    releases = stream(pieces, *stop)
    whole = b"".join(pieces)
    if releases[-1].stopped:
        at = min(i for s in stop if (i := whole.find(s.encode())) >= 0)
        assert shown(releases) == whole[:at].decode(errors="replace")
    else:
        assert shown(releases) == whole.decode(errors="replace")
        assert sum(r.num_tokens for r in releases) == len(pieces)
        assert not any(s in shown(releases) for s in stop)
