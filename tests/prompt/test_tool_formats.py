"""How models write calls: which template teaches what, and outputs read in any pieces."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import (
    TOOL_FORMATS,
    CallArguments,
    CallBegin,
    Content,
    Part,
    format_for,
)

WEATHER = '{"name":"weather","arguments":{"city":"Rö{m}e \\"","days":[{"n":1}]}}'
NOW = '{"name": "now", "arguments": {}}'
AS_LLAMA = (WEATHER.replace("arguments", "parameters"), NOW.replace("arguments", "parameters"))
OUTPUTS = {
    "demo": f"<|tool_call|>{WEATHER}\n{NOW}",
    "mistral": f"[TOOL_CALLS] [{WEATHER}, {NOW}]",
    "hermes": f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>",
    "llama3": "; ".join(AS_LLAMA),
}
CALLS = [("weather", '{"city":"Rö{m}e \\"","days":[{"n":1}]}'), ("now", "{}")]


def read(form: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Content, and calls as (name, arguments)."""
    reader = TOOL_FORMATS[form].reader()
    parts: list[Part] = [part for piece in pieces for part in reader.feed(piece)] + reader.finish()
    content, calls = "", list[tuple[str, str]]()
    for part in parts:
        match part:
            case Content(text=text):
                assert not calls, "content after calls"
                content += text
            case CallBegin(name=name):
                calls.append((name, ""))
            case CallArguments(text=text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, calls


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randrange(9)))})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("form", OUTPUTS)
def test_calls_are_read_whole_in_characters_and_in_any_pieces(form: str) -> None:
    rng = random.Random(5)
    ways = [[OUTPUTS[form]], list(OUTPUTS[form]), *(cut(OUTPUTS[form], rng) for _ in range(200))]
    assert all(read(form, pieces) == ("", CALLS) for pieces in ways)


@pytest.mark.parametrize("form", ["demo", "mistral", "hermes"])
def test_content_may_come_before_calls_without_the_white_space_between(form: str) -> None:
    text = f"Let me  see <tool.\n \n{OUTPUTS[form]}"
    rng = random.Random(6)
    ways = [[text], list(text), *(cut(text, rng) for _ in range(200))]
    assert all(read(form, pieces) == ("Let me  see <tool.", CALLS) for pieces in ways)


@pytest.mark.parametrize("form", OUTPUTS)
@pytest.mark.parametrize(
    "text", ["", " {not calls}", "Hello.\n\n", "ends in <tool_ca", "<|tool_c", "[TOOL_[TOOL", "  \n"]
)
def test_text_without_calls_comes_out_as_it_is(form: str, text: str) -> None:
    assert read(form, [text]) == read(form, list(text)) == (text, [])


@pytest.mark.parametrize("form", OUTPUTS)
def test_content_may_hold_markers_where_calls_come_first_or_never(form: str) -> None:
    for text in (f'{{"a":"{TOOL_FORMATS[form].marker}"}}' if form != "llama3" else "a {", "<tool", "[TOOL_"):
        reader = TOOL_FORMATS[form].reader(at_start=True)
        parts = [part for letter in text for part in reader.feed(letter)] + reader.finish()
        assert "".join(part.text for part in parts if isinstance(part, Content)) == text
        assert not reader.has_calls
    reader = TOOL_FORMATS[form].reader(at_start=True)
    parts = [part for letter in OUTPUTS[form] for part in reader.feed(letter)] + reader.finish()
    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["weather", "now"]


def test_text_is_released_as_soon_as_it_can_be_no_marker() -> None:
    reader = TOOL_FORMATS["hermes"].reader()
    assert reader.feed("a <tool") == [Content("a")]
    assert reader.feed("box>") == [Content(" <toolbox>")]
    assert not reader.has_calls


def test_arguments_come_out_piece_by_piece() -> None:
    reader = TOOL_FORMATS["demo"].reader()
    assert reader.feed('<|tool_call|>{"name":"f"') == []
    assert reader.feed(',"arguments":{"a"') == [CallBegin("f"), CallArguments('{"a"')]
    assert reader.feed(':"x\\') == [CallArguments(':"x\\')]
    assert reader.feed('"}"') == [CallArguments('"}"')]
    assert reader.is_cut
    assert reader.feed("}}\n") == [CallArguments("}")]
    assert not reader.is_cut


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ("Hello", False),
        ("<|tool_call|>", True),
        ('<|tool_call|>{"name":"f"', True),
        ('<|tool_call|>{"name":"f","arguments":{"a":1', True),
        ('<|tool_call|>{"name":"f","arguments":{"a":1}', False),
        ('<|tool_call|>{"name":"f","arguments":{}}\n{"na', False),
    ],
)
def test_a_cut_call_is_known(text: str, is_cut: bool) -> None:
    reader = TOOL_FORMATS["demo"].reader()
    reader.feed(text)
    assert reader.is_cut is is_cut


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ '<|tool_call|>' }}", "demo"),
        ("{{ tools }}<|start_of_role|><|tool_call|>", None),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]", None),
        ('<tool_call>\n{"name": N, "arguments": A}\n</tool_call>', "hermes"),
        ('{{ "<tool_call>{\\"name\\": N, \\"arguments\\": A}</tool_call>" }}', "hermes"),
        ("{{ tools }}<tool_call><function=f>{{ arguments }}</function></tool_call>", None),
        ('{{ tools }}<tool_call>f<arg_key>"arguments"</arg_key></tool_call>', None),
        ("<|start_header_id|>{{ '\"parameters\": ' }}", "llama3"),
        ("<|start_header_id|>{{ tools }}", None),
        ("{{ messages[0].content }}{{ tools }}", None),
        ("{{ messages[0].content }}", "hermes"),
    ],
)
def test_a_template_shows_its_format_or_no_tools_at_all(template: str, form: str | None) -> None:
    found = format_for(ChatTemplate(template, bos_text="", eos_text=""))
    assert (found.name if found else None) == form


@pytest.mark.parametrize("form", OUTPUTS)
def test_written_calls_are_read_back(form: str) -> None:
    key = TOOL_FORMATS[form].arguments_key
    lines = "\n".join(call.replace("arguments", key) for call in (WEATHER, NOW))
    assert read(form, [TOOL_FORMATS[form].written(lines)]) == ("", CALLS)


def test_mistrals_ids_have_nine_letters_and_digits() -> None:
    mistral = TOOL_FORMATS["mistral"]
    assert mistral.history_id("a1B2c3D4e") == "a1B2c3D4e"
    made = mistral.history_id("call_abcdefghijklmnopqrstuvwx")
    assert re.fullmatch(r"[A-Za-z0-9]{9}", made)
    assert made == mistral.history_id("call_abcdefghijklmnopqrstuvwx") != mistral.history_id("call_b")
