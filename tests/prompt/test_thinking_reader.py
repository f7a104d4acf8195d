"""Outputs that begin with thoughts, in any pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.prompt.reasoning.formats import REASONING_FORMATS
from openai_cpu_server.prompt.reasoning.reader import SilentReader, ThinkingReader
from openai_cpu_server.prompt.reasoning.stage import Stage
from openai_cpu_server.prompt.tool_formats import Content, OutputReader, Reasoning, TextReader

BEFORE, WITHIN, BEHIND = Stage.BEFORE, Stage.WITHIN, Stage.BEHIND


def reader(form: str, stage: Stage) -> ThinkingReader:
    return ThinkingReader(REASONING_FORMATS[form], stage, TextReader())


def read(by: OutputReader, pieces: Sequence[str]) -> tuple[str, str]:
    """The thoughts and the content. No content comes before a thought."""
    parts = [part for piece in pieces for part in by.feed(piece)] + by.finish()
    kinds = [type(part) for part in parts]
    assert kinds == sorted(kinds, key=[Reasoning, Content].index)
    assert all(part.text for part in parts if isinstance(part, (Reasoning, Content)))
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return thoughts, "".join(part.text for part in parts if isinstance(part, Content))


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
def test_thoughts_and_content(form: str, stage: Stage, text: str, thoughts: str, content: str) -> None:
    assert read(reader(form, stage), [text]) == (thoughts, content)
    assert read(reader(form, stage), list(text)) == (thoughts, content)


@given(
    st.sampled_from(sorted(REASONING_FORMATS)),
    st.sampled_from(Stage),
    st.data(),
)
def test_pieces_change_nothing(form: str, stage: Stage, data: st.DataObject) -> None:
    marks = REASONING_FORMATS[form]
    words = [
        marks.begin,
        marks.end,
        marks.answer_begin,
        marks.answer_end,
        marks.end[:-1],
        " ",
        "\n",
        "a",
        "b",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(reader(form, stage), pieces) == read(reader(form, stage), [text])


def test_thoughts_stream() -> None:
    by = reader("think", WITHIN)
    assert by.feed("I wonder") == [Reasoning("I wonder")]
    assert by.feed(" why. </") == [Reasoning(" why.")]
    assert by.feed("think>\n") == []
    assert by.feed("\nYes") == [Content("Yes")]


def test_thoughts_can_be_kept_to_oneself() -> None:
    assert read(SilentReader(reader("think", WITHIN)), ["Hm.</think>Yes."]) == ("", "Yes.")
