"""Text comes in whole characters, and any piece of it is assigned to its part of the output."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.api.generation.call import CallThinking
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import OutputMarks, OutputPart, Thinking
from openai_cpu_server.engine.output import ReleasedText, TextStream
from openai_cpu_server.engine.parts import OutputParts, PartReader, StopStringBuffer
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, ThinkingStage

BEFORE, WITHIN, BEHIND = ThinkingStage.BEFORE, ThinkingStage.WITHIN, ThinkingStage.BEHIND


def reader(form: str, stage: ThinkingStage) -> PartReader:
    """Return a reader that cuts formats with channels too. Their first part is thoughts as everywhere."""
    marks = CallThinking(REASONING_FORMATS[form], stage).marks
    return PartReader(msgspec.structs.replace(marks, has_channels=False))


def read(part_reader: PartReader, pieces: Sequence[str]) -> tuple[str, str]:
    """Return the thoughts and the answer. No piece of the answer may come before a thought."""
    texts = [part for piece in pieces for part in part_reader.feed(piece)] + part_reader.finish()
    parts = [part for part, _ in texts]
    assert parts == sorted(parts, key=[OutputPart.THINKING, OutputPart.ANSWER].index)
    assert all(text for _, text in texts)
    thoughts = "".join(text for part, text in texts if part is OutputPart.THINKING)
    return thoughts, "".join(text for part, text in texts if part is OutputPart.ANSWER)


SOLAR_CALLS = "<|begin|>assistant<|tool_calls|>"
K3_END, K3_ANSWER_END = "<|close|>think<|sep|>", "<|close|>response<|sep|><|close|>message<|sep|>"
STORIES = [
    ("think", BEFORE, "<think>\nHm.\n\nSo.\n</think>\n\nYes. \n", "Hm.\n\nSo.", "Yes. \n"),
    ("think", BEFORE, "\n<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("think", BEFORE, "Yes, <think>a</think>", "", "Yes, <think>a</think>"),
    ("think", BEFORE, "  <thin", "", "  <thin"),
    ("think", BEFORE, " \n", "", " \n"),
    ("think", BEFORE, "\u3000<think>a</think>", "", "\u3000<think>a</think>"),
    ("think", WITHIN, "Hm. </thi </think>\n\nYes </think>.", "Hm. </thi", "Yes </think>."),
    ("think", WITHIN, "\nI wonder ", "I wonder", ""),
    ("think", WITHIN, "I wonder </th", "I wonder </th", ""),
    ("think", WITHIN, "</think>", "", ""),
    ("think", WITHIN, "a</think> \n", "a", ""),
    ("think", WITHIN, "a</think>\n\n</think>\n\nYes.", "a", "Yes."),
    ("think", WITHIN, "a</think>\n\n</thi", "a", "</thi"),
    ("think", BEHIND, " Yes.</think>", "", " Yes.</think>"),
    ("mistral", BEFORE, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ("granite", BEFORE, "<think>Hm.</think>\n<response> Yes. </response>\n", "Hm.", "Yes."),
    ("granite", BEFORE, "<think>Hm.</think>\nYes. </response>", "Hm.", "Yes. </response>"),
    ("granite", BEFORE, "<think>Hm.</think> <respond", "Hm.", "<respond"),
    ("granite", BEFORE, "<think>Hm.</think> <resp", "Hm.", "<resp"),
    ("granite", BEFORE, "<think>Hm.</think><response>a</response> b </resp", "Hm.", "a</response> b </resp"),
    ("granite", BEFORE, "<response> Yes. </response>\n", "", "Yes."),
    ("granite", BEFORE, "Yes. </response>", "", "Yes. </response>"),
    ("granite", BEFORE, "<resp", "", "<resp"),
    ("granite", BEHIND, " Yes.</response>", "", " Yes."),
    ("hunyuan", BEFORE, "<answer>\nYes.\n</answer>", "", "Yes."),
    ("granite-3.2", BEFORE, "Here is my thought process:\nHm.\nHere is my response:\nYes.", "Hm.", "Yes."),
    ("apriel", WITHIN, "Hm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]", "Hm.", "Yes."),
    ("gemma", BEFORE, "<|channel>thought\nHm.<channel|>Yes.", "Hm.", "Yes."),
    ("solar", BEFORE, "<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.", "Hm.", "Yes."),
    ("solar", BEFORE, "<|content|>Yes.", "", "Yes."),
    ("solar", BEHIND, "<|content|>Yes.", "", "Yes."),
    ("solar", BEHIND, "<|con", "", "<|con"),
    ("solar", BEFORE, "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|>", "Hm.", SOLAR_CALLS),
    ("kimi-k3", WITHIN, f"Hm.{K3_END}<|open|>response<|sep|>Yes.{K3_ANSWER_END}", "Hm.", "Yes."),
    ("kimi-k3", BEHIND, f"Yes.{K3_ANSWER_END}", "", "Yes."),
    ("hy3", BEFORE, "<think:opensource>Hm.</think:opensource>Yes.", "Hm.", "Yes."),
    ("seed", BEFORE, "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
    ("cohere", WITHIN, "Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Hm.", "Yes."),
    (
        "harmony",
        BEFORE,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Hm.",
        "Yes.",
    ),
]


@pytest.mark.parametrize(("form", "stage", "text", "thoughts", "content"), STORIES)
def test_thoughts_and_answer(form: str, stage: ThinkingStage, text: str, thoughts: str, content: str) -> None:
    assert read(reader(form, stage), [text]) == (thoughts, content)
    assert read(reader(form, stage), list(text)) == (thoughts, content)


def test_thoughts_stream() -> None:
    part_reader, texts = reader("think", WITHIN), []
    for piece in ("I wonder", " why. </", "think>\n", "\nYes"):
        texts.append([(part.value, text) for part, text in part_reader.feed(piece)])
    assert texts == [[("thinking", "I wonder")], [("thinking", " why.")], [], [("answer", "Yes")]]


@given(st.sampled_from(sorted(REASONING_FORMATS)), st.sampled_from(ThinkingStage), st.data())
def test_the_size_of_pieces_changes_no_part(form: str, stage: ThinkingStage, data: st.DataObject) -> None:
    marks = REASONING_FORMATS[form]
    words = [marks.begin, marks.end, marks.answer_begin, marks.answer_end, marks.end[:-1], *" \nab"]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(reader(form, stage), pieces) == read(reader(form, stage), [text])


FINAL = "<|final|>"


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Hm</t><|start|>x<|final|>Yes", "Yes"),
        ("Hm</t>\n<|call|>f<|final|>Yes", "Yes"),
        ("Hm</t>Yes", "es"),
        ("Hm</t><|start|>x", ""),
        ("Hm", ""),
    ],
)
def test_text_for_the_user_begins_behind_headers(text: str, shown: str, size: int) -> None:
    buffer = StopStringBuffer(Thinking(end="</t>", shown_behind=FINAL))
    pieces = [text[start : start + size].encode() for start in range(0, len(text), size)]
    behind = next((n for n, piece in enumerate(pieces, 1) if buffer.ends_with(piece)), len(pieces))
    rest = b"".join(pieces[behind:]).decode()
    assert shown.endswith(rest)
    assert rest == shown or size > 1


LETTERS = [*"\n<t>a ", "</t>", *"\n<r> b"]
MARKS = OutputMarks(begin="<t>", end="</t>", answer_begin="<r>")


def cut(pieces: Sequence[str], *, ends: bool = True, marks: OutputMarks = MARKS) -> list[TokenEvent]:
    parts = OutputParts(marks, lambda token: pieces[token].encode())
    events = [TokenEvent(id="a", tokens=(at,), text=piece) for at, piece in enumerate(pieces)]
    if ends:
        finish = Finish(reason=FinishReason.STOP, output_tokens=len(pieces))
        events[-1] = msgspec.structs.replace(events[-1], finish=finish)
    return [event for whole in events for event in parts.cut(whole)]


def test_an_event_has_one_part_and_the_last_one_has_the_figures() -> None:
    events = cut([*"<t>a", "b</t>\n\nc", "d"])
    texts = [(event.text, event.part, len(event.tokens)) for event in events if event.text]
    assert texts == [
        ("a", OutputPart.THINKING, 1),
        ("b", OutputPart.THINKING, 1),
        ("c", OutputPart.ANSWER, 0),
        ("d", OutputPart.ANSWER, 1),
    ]
    assert [token for event in events for token in event.tokens] == list(range(6))
    assert [event.finish is not None for event in events] == [False] * 6 + [True]
    assert events[-1].finish.thought_tokens == 5


def test_events_have_the_first_token_of_the_answer_once_it_is_certain() -> None:
    events = cut(LETTERS)
    start = LETTERS.index("b")
    starts = [event.answer_start for event in events]
    assert starts == [None] * starts.index(start) + [start] * starts.count(start)
    assert events[starts.index(start)].tokens == (start,)


@pytest.mark.parametrize(
    ("pieces", "start", "thoughts"),
    [
        ([*"<t>a"], 4, 4),
        ([*"<t"], 0, 0),
        ([*"<tb"], 0, 0),
        ([" ", "<r>", "b"], 2, 0),
        ([*"<t>a", "</t> <r>"], 5, 5),
    ],
)
def test_the_last_event_has_the_start_of_the_answer(pieces: list[str], start: int, thoughts: int) -> None:
    last = cut(pieces)[-1]
    assert last.answer_start == start
    assert last.finish.thought_tokens == thoughts


def test_an_output_that_fails_is_one_event() -> None:
    parts = OutputParts(MARKS, lambda _: b"")
    failure = TokenEvent(
        id="a", text="<t>a</t>b", finish=Finish(reason=FinishReason.ERROR, output_tokens=3, error="!")
    )
    assert parts.cut(failure) == (failure,)


def test_text_of_channels_is_one_part_and_their_first_thoughts_are_counted() -> None:
    marks = msgspec.structs.replace(MARKS, has_channels=True)
    events = cut(["<t>", "a", "</t>", "b"], marks=marks)
    assert [(event.text, event.part) for event in events] == [
        (text, OutputPart.ANSWER) for text in ("<t>", "a", "</t>", "b")
    ]
    assert (events[-1].finish.thought_tokens, events[-1].answer_start) == (3, 3)


@given(
    st.lists(st.sampled_from(["<t>", "</t>", "<r>", "<", "/t>", " ", "a"]), min_size=1, max_size=9), st.data()
)
def test_a_new_engine_continues_where_a_dead_one_stopped(pieces: list[str], data: st.DataObject) -> None:
    """Text that is held back because it may be a mark comes from the next engine, once."""
    num_sent = data.draw(st.integers(0, len(pieces) - 1))
    whole, before = cut(pieces), cut(pieces[:num_sent], ends=False) if num_sent else []
    parts = OutputParts(MARKS, lambda token: pieces[token].encode())
    parts.read(range(num_sent), "".join(pieces[:num_sent]))
    finish = Finish(reason=FinishReason.STOP, output_tokens=len(pieces))
    rest = TokenEvent(
        id="a", tokens=tuple(range(num_sent, len(pieces))), text="".join(pieces[num_sent:]), finish=finish
    )
    resumed = [*before, *parts.cut(rest)]
    assert texts_of(resumed) == texts_of(whole)
    assert resumed[-1].finish == whole[-1].finish
    assert resumed[-1].answer_start == whole[-1].answer_start


def texts_of(events: Sequence[TokenEvent]) -> dict[OutputPart, str]:
    return {part: "".join(event.text for event in events if event.part is part) for part in OutputPart}


def stream(pieces: list[bytes], *stop: str) -> list[ReleasedText]:
    text = TextStream(stop)
    releases = []
    for piece in pieces:
        releases.append(text.push(piece))
        if releases[-1].stop is not None:
            return releases
    return [*releases, text.flush()]


def shown(releases: list[ReleasedText]) -> str:
    return "".join(r.text for r in releases)


R = ReleasedText
HELD = R(0, "")
RELEASES: dict[str, tuple[list[bytes], tuple[str, ...], list[ReleasedText]]] = {
    "plain tokens pass at once": ([b"Hel", b"lo"], (), [R(1, "Hel"), R(1, "lo"), HELD]),
    "a character in parts": ([b"\xf0\x9f", b"\x98", b"\x80!"], (), [HELD, HELD, R(3, "😀!")]),
    "bytes that are not text": ([b"\x80\x80", b"a"], (), [R(1, "\ufffd\ufffd"), R(1, "a")]),
    "a stop string": ([b"one", b" STOP", b" two"], ("STOP",), [R(1, "one"), R(1, " ", stop="STOP")]),
    "a stop string in parts": (
        [b"one S", b"TO", b"P two"],
        ("STOP",),
        [HELD, HELD, R(1, "one ", stop="STOP")],
    ),
    "the beginning of a stop string alone": ([b"ST", b"AR"], ("STOP",), [HELD, R(2, "STAR")]),
    "the earliest of several stop strings counts": ([b"a-b+c"], ("+", "-"), [R(1, "a", stop="-")]),
    "a stop string within a longer token": ([b"x\n\nyz"], ("\n\n",), [R(1, "x", stop="\n\n")]),
    "tokens without text are released with the next": ([b"", b"a"], (), [R(1, ""), R(1, "a")]),
    "whole characters before a stop": ([b"\xc3", b"\xa9 S", b"x"], ("STOP",), [HELD, HELD, R(3, "é Sx")]),
}


@pytest.mark.parametrize("story", RELEASES)
def test_the_text_that_each_token_releases(story: str) -> None:
    pieces, stop, releases = RELEASES[story]
    assert stream(pieces, *stop)[: len(releases)] == releases


def test_unfinished_characters_at_the_end_and_before_a_stop_string() -> None:
    assert shown(stream([b"a", b"\xe2\x82"])) == "a\ufffd"
    assert shown(stream([b"gut \xe2", b"\x9c", b"\x93 ja"], "✓")) == "gut "


@given(st.lists(st.binary(max_size=5), max_size=20), st.lists(st.text("ab\u00e9", min_size=1, max_size=4)))
def test_an_output_is_the_decoded_sum_of_pieces_up_to_a_stop(pieces: list[bytes], stop: list[str]) -> None:
    releases = stream(pieces, *stop)
    whole = b"".join(pieces)
    if releases[-1].stop is not None:
        at = min(i for s in stop if (i := whole.find(s.encode())) >= 0)
        assert shown(releases) == whole[:at].decode(errors="replace")
    else:
        assert shown(releases) == whole.decode(errors="replace")
        assert sum(r.num_tokens for r in releases) == len(pieces)
        assert not any(s in shown(releases) for s in stop)
