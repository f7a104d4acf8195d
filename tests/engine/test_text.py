"""Text comes out whole: characters, tokens, and nothing of a stop string."""

from __future__ import annotations

import pytest
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


HELD = ReleasedText(0, "")
STORIES: dict[str, tuple[list[bytes], tuple[str, ...], list[ReleasedText]]] = {
    "plain tokens pass at once": (
        [b"Hel", b"lo"],
        (),
        [ReleasedText(1, "Hel"), ReleasedText(1, "lo"), HELD],
    ),
    "a character in parts is held until it is whole": (
        [b"\xf0\x9f", b"\x98", b"\x80!"],
        (),
        [HELD, HELD, ReleasedText(3, "😀!")],
    ),
    "bytes that are no text do not hold up what follows": (
        [b"\x80\x80", b"a"],
        (),
        [ReleasedText(1, "\ufffd\ufffd"), ReleasedText(1, "a")],
    ),
    "a stop string ends the text before it": (
        [b"one", b" STOP", b" two"],
        ("STOP",),
        [ReleasedText(1, "one"), ReleasedText(1, " ", stop="STOP")],
    ),
    "a stop string over the borders of tokens never leaks": (
        [b"one S", b"TO", b"P two"],
        ("STOP",),
        [HELD, HELD, ReleasedText(1, "one ", stop="STOP")],
    ),
    "the beginning of a stop string is shown when it was none": (
        [b"ST", b"AR"],
        ("STOP",),
        [HELD, ReleasedText(2, "STAR")],
    ),
    "the earliest of several stop strings counts": ([b"a-b+c"], ("+", "-"), [ReleasedText(1, "a", stop="-")]),
    "a stop string within a longer token": ([b"x\n\nyz"], ("\n\n",), [ReleasedText(1, "x", stop="\n\n")]),
    "tokens without text are released with the next": (
        [b"", b"a"],
        (),
        [ReleasedText(1, ""), ReleasedText(1, "a")],
    ),
    "a release never splits a character before what may be a stop": (
        [b"\xc3", b"\xa9 S", b"x"],
        ("STOP",),
        [HELD, HELD, ReleasedText(3, "é Sx")],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_is_released_with_each_token(story: str) -> None:
    pieces, stop, releases = STORIES[story]
    assert stream(pieces, *stop)[: len(releases)] == releases


def test_unfinished_characters_at_the_end_and_in_a_stop() -> None:
    assert shown(stream([b"a", b"\xe2\x82"])) == "a\ufffd"
    assert shown(stream([b"gut \xe2", b"\x9c", b"\x93 ja"], "✓")) == "gut "


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
