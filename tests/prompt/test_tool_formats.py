"""Formats of tool calls: templates that teach them, and outputs read in any pieces."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import (
    TOOL_FORMATS,
    CallArguments,
    CallBegin,
    Content,
    Part,
    WrittenCall,
    format_for,
)
from tests.prompt.test_reasoning_templates import FOLDER


def read(form: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the content, and the calls as (name, arguments)."""
    reader = TOOL_FORMATS[form].reader({"weather": {"city": frozenset()}})
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


ROME = '{"city": "Rome", "days": 3}'
ONE, TWO = f'{{"name": "weather", "arguments": {ROME}}}', '{"name": "now", "arguments": {}}'
BY_ID = '{{"tool_call_id": "{}", "tool_name": "{}", "parameters": {}}}'
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
TAGGED = "<parameter=city>{0}Rome{0}</parameter>\n<parameter=days>{0}3{0}</parameter>"
KIMI = "<|tool_call_begin|>functions.{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
HY_CITY = (
    "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome</arg_value:opensource>\n"
    "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
    "</tool_call:opensource>\n"
)
DSML = (
    '<｜DSML｜{0}>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜{0}>'
)
M3 = "]<]minimax[>["
SOLAR = "<|tool_call:begin|>000000000<|tool_call:name|>{}<|tool_call:args|>{}<|tool_call:end|>"
COHERE = '{{"tool_name": "{}", "parameters": {}}}'
SINGLE = [name for name, form in TOOL_FORMATS.items() if form.is_single]
"""Formats of models that make one call at a time."""
TRANSCRIPTS = {  # as each family's documentation and templates write two calls
    "demo": f"<|tool_call|>{ONE}\n{TWO}",
    "hermes": f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
    "generic": f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
    "llama3": f"{ONE}; {TWO}".replace("arguments", "parameters"),
    "pythonic": "[weather(city='Rome', days=3), now()]",
    "lfm2": "<|tool_call_start|>[weather(city='Rome', days=3), now()]<|tool_call_end|>",
    "mistral": f"[TOOL_CALLS][{ONE}, {TWO}]",
    "mistral-args": f"[TOOL_CALLS]weather[ARGS]{ROME}[TOOL_CALLS]now[ARGS]{{}}",
    "mistral-ids": f"[TOOL_CALLS]weather[CALL_ID]000000000[ARGS]{ROME}"
    "[TOOL_CALLS]now[CALL_ID]000000000[ARGS]{}",
    "qwen3-coder": "<tool_call>\n<function=weather>\n" + TAGGED.format("\n") + "\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed-oss": "<seed:tool_call>\n<function=weather>\n" + TAGGED.format("") + "\n</function>\n"
    "</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
    "deepseek": f"<｜tool▁calls▁begin｜>{BEGIN}function{SEP}weather\n```json\n{ROME}\n```{END}\n"
    f"{BEGIN}function{SEP}now\n```json\n{{}}\n```{END}<｜tool▁calls▁end｜>",
    "deepseek-v3.1": f"<｜tool▁calls▁begin｜>{BEGIN}weather{SEP}{ROME}{END}"
    f"{BEGIN}now{SEP}{{}}{END}<｜tool▁calls▁end｜>",
    "granite": f"<|tool_call|>[{ONE}, {TWO}]",
    "phi4": f"<|tool_call|>[{ONE}, {TWO}]<|/tool_call|>",
    "phi4-tags": f"<|tool_call|>{ONE}<|/tool_call|><|tool_call|>{TWO}<|/tool_call|>",
    "functools": f"functools[{ONE}, {TWO}]",
    "functiongemma": "<start_function_call>call:weather{city:<escape>Rome<escape>,days:3}<end_function_call>"
    "<start_function_call>call:now{}<end_function_call>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>",
    "harmony": f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ROME}<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
    "kimi": "<|tool_calls_section_begin|>"
    f"{KIMI.format('weather:0', ROME)}{KIMI.format('now:1', '{}')}<|tool_calls_section_end|>",
    "nemotron": f"<TOOLCALL>[{ONE}, {TWO}]</TOOLCALL>",
    "command-r7b": "<|START_ACTION|>["
    f"{BY_ID.format(0, 'weather', ROME)}, {BY_ID.format(1, 'now', '{}')}]<|END_ACTION|>",
    "hy3": "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
    f"{HY_CITY}<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n"
    "</tool_calls:opensource>",
    "deepseek-v4": DSML.format("tool_calls"),
    "deepseek-v3.2": DSML.format("function_calls"),
    "minicpm5": '<function name="weather"><param name="city">Rome</param><param name="days">3</param>'
    '</function>\n<function name="now"></function>',
    "kimi-k3": '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="0"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    "apriel": f"<tool_calls>[{ONE}, {TWO}]</tool_calls>",
    "minimax-m1": f"<tool_calls>\n{ONE}\n{TWO}\n</tool_calls>",
    "minimax-m3": f'{M3}<tool_call>\n{M3}<invoke name="weather">{M3}<city>Rome{M3}</city>'
    f'{M3}<days>3{M3}</days>{M3}</invoke>\n{M3}<invoke name="now">{M3}</invoke>\n{M3}</tool_call>',
    "gigachat": f"<|function_call|>{ONE}",
    "gigachat3": f"<|message_sep|>\n\nfunction call<|role_sep|>\n{ONE}",
    "solar": f"<|tool_calls|>{SOLAR.format('weather', ROME)}{SOLAR.format('now', '{}')}<|calls|>",
    "functionary-v3.1": f"<function=weather>{ROME}</function><function=now>{{}}</function>",
    "command-r": f"Action:\n```json\n[{COHERE.format('weather', ROME)}, {COHERE.format('now', '{}')}]\n```",
    "apertus": f'<|tools_prefix|>[{{"weather": {ROME}}}, {{"now": {{}}}}]<|tools_suffix|>',
}


def read_parsed(form: str, pieces: list[str]) -> tuple[str, list[tuple[str, object]]]:
    content, calls = read(form, pieces)
    return content, [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize(("form", "text"), TRANSCRIPTS.items())
def test_calls_and_content_before_them_are_read_in_any_pieces(form: str, text: str) -> None:
    """White space before calls is not content. Calls without a mark have no content before them."""
    rng = random.Random(5)
    _, calls = read_parsed(form, [text])
    assert [name for name, _ in calls] == ["weather", "now"][: 1 if form in SINGLE else 2]
    for content in ("",) if form in ("llama3", "pythonic", "harmony") else ("", "Let me  <see> [it]."):
        whole = (content and f"{content}\n \n") + text
        for pieces in ([whole], list(whole), *(cut(whole, rng) for _ in range(60))):
            assert read_parsed(form, pieces) == (content, calls)


WHOLE = ("demo", "mistral", "hermes", "llama3")
"""Formats whose arguments are one JSON text."""


@pytest.mark.parametrize("form", WHOLE)
def test_arguments_keep_their_spelling(form: str) -> None:
    for text in (TRANSCRIPTS[form], TRANSCRIPTS[form].replace("[TOOL_CALLS]", "[TOOL_CALLS] ")):
        assert read(form, [text]) == ("", [("weather", ROME), ("now", "{}")])


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_every_format_reads_calls_as_its_family_and_the_server_write_them(form: str) -> None:
    days = [{"n": 1, "it's": [True, None, "a\\'\"\n<b>"]}]
    for arguments in (json.loads(ROME), {"city": 'Rö{m}e "', "days": days}):
        both = [WrittenCall("weather", arguments), WrittenCall("now", {})][: 1 if form in SINGLE else 2]
        written = TOOL_FORMATS[form].written(both)
        transcript = TRANSCRIPTS[form] if arguments["city"] == "Rome" else written
        assert "".join(written.split()) == "".join(transcript.split())
        for pieces in ([transcript], list(transcript)):
            assert read_parsed(form, pieces) == ("", [(call.name, call.arguments) for call in both])


@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.parametrize(
    "text", ["", " {not calls}", "Hello.\n\n", "ends in <tool_ca", "<|tool_c", "[TOOL_[TOOL", "  \n"]
)
def test_text_without_calls_comes_out_as_it_is(form: str, text: str) -> None:
    assert read(form, [text]) == read(form, list(text)) == (text, [])


@pytest.mark.parametrize("form", WHOLE)
def test_content_may_hold_markers_where_calls_come_first_or_never(form: str) -> None:
    for text in (f'{{"a":"{TOOL_FORMATS[form].marker}"}}' if form != "llama3" else "a {", "<tool", "[TOOL_"):
        reader = TOOL_FORMATS[form].reader({}, at_start=True)
        parts = [part for letter in text for part in reader.feed(letter)] + reader.finish()
        assert "".join(part.text for part in parts if isinstance(part, Content)) == text
        assert not reader.has_calls
    reader = TOOL_FORMATS[form].reader({}, at_start=True)
    parts = [part for letter in TRANSCRIPTS[form] for part in reader.feed(letter)] + reader.finish()
    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["weather", "now"]


def test_text_is_released_as_soon_as_it_cannot_be_a_marker() -> None:
    reader = TOOL_FORMATS["hermes"].reader({})
    assert reader.feed("a <tool") == [Content("a")]
    assert reader.feed("box>") == [Content(" <toolbox>")]
    assert not reader.has_calls


def test_arguments_come_out_piece_by_piece() -> None:
    reader = TOOL_FORMATS["demo"].reader({})
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
        *(("Hello", False), ("<|tool_call|>", True), ('<|tool_call|>{"name":"f"', True)),
        ('<|tool_call|>{"name":"f","arguments":{"a":1', True),
        ('<|tool_call|>{"name":"f","arguments":{"a":1}', False),
        ('<|tool_call|>{"name":"f","arguments":{}}\n{"na', False),
    ],
)
def test_a_cut_call_is_recognised(text: str, is_cut: bool) -> None:
    reader = TOOL_FORMATS["demo"].reader({})
    reader.feed(text)
    assert reader.is_cut is is_cut


RECORD = FOLDER.with_name("shipped_templates.txt")
TAUGHT = {
    **{name: form for name, form, *_ in map(json.loads, RECORD.read_text("utf-8").splitlines())},
    "llama-cpp-microsoft-Phi-4-mini-instruct": "phi4-tags",
    "microsoft-Phi-4-mini-instruct": "phi4",
    "vllm-deepseekv3": "deepseek",
    "vllm-functiongemma": "functiongemma",
    "vllm-gemma3_pythonic": "pythonic",
    "vllm-granite": "granite",
    "vllm-llama3.2_pythonic": "pythonic",
    "vllm-llama4_pythonic": "pythonic",
    "vllm-phi4_mini": "functools",
}


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text()


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.jinja")))
def test_a_real_template_shows_its_format_and_no_other(name: str) -> None:
    teaching = [form.name for form in TOOL_FORMATS.values() if form.recognises(source(name))]
    assert teaching == ([] if TAUGHT[name] == "generic" else [TAUGHT[name]])
    assert format_for(ChatTemplate(source(name), bos_text="<s>", eos_text="</s>")).name == TAUGHT[name]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ '<|tool_call|>' }}", "demo"),
        ('<tool_call>\n{"name": N, "arguments": A}\n</tool_call>', "hermes"),
        ('{{ "<tool_call>{\\"name\\": N, \\"arguments\\": A}</tool_call>" }}', "hermes"),
        ("<|start_header_id|>{{ tools }}", "generic"),
        ("{{ messages[0].content }}{{ tools }}", "generic"),
        ("{{ messages[0].content }}", "generic"),
        (None, "generic"),
    ],
)
def test_a_template_shows_its_format_or_gets_the_generic_one(template: str | None, form: str) -> None:
    found = None if template is None else ChatTemplate(template, bos_text="", eos_text="")
    assert format_for(found).name == form
