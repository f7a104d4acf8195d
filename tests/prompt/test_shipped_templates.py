"""Ten conversations in every chat template that the vendored llama.cpp ships.

`shipped_templates.txt` records facts of each template and the turn with two calls that it rendered; the page
docs/templates.md is made from them. A slow test renders all templates again. New templates:
`pytest --inline-snapshot=fix tests/prompt/test_shipped_templates.py`.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from inline_snapshot import external_file

from openai_cpu_server.prompt.chat_prompts import ChatPrompts, ControlNames, Conversation
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import switch, template_reasoning
from openai_cpu_server.prompt.template import TemplateMessage
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, CallArguments, CallBegin, format_for
from openai_cpu_server.prompt.tool_formats.patterns import regex_of
from scripts.manual.table import table
from tests.api.fake_tokenizer import FakeTokenizer
from tests.prompt.test_conversation import message, result
from tests.prompt.test_tool_formats import cut

FOLDERS = [*Path.home().glob(".cache/openai-cpu-server/wheels/*/templates")]
"""Folders of templates that `scripts/bootstrap` has left beside its wheel."""
RECORD = Path(__file__).parent / "shipped_templates.txt"
Json = dict[str, Any]


class Facts(NamedTuple):
    name: str
    form: str
    reasoning: str
    calls: str
    """Form of earlier calls: by the `template`, `one by one`, or in `words`."""
    thoughts: str
    """Turns whose thoughts are shown: `calls` since the last question, and `earlier` ones."""
    num_rendered: int
    turn: str
    """Rendering of two calls, up to their last result."""

    @property
    def row(self) -> tuple[str, ...]:
        reasoning = f"`{self.reasoning}`" if self.reasoning else ""
        rendered = f"{self.num_rendered} of {len(CONVERSATIONS)}"
        return self.name, f"`{self.form}`", reasoning, self.calls, self.thoughts, rendered


def tool(name: str, **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, "required": [*properties][:1]}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


TAGS = {"type": "array", "items": {"type": "object"}}
TOOLS = [tool("weather", city={"type": "string"}, days={"type": "integer"}, tags=TAGS), tool("now")]
CITY = {"city": "Rome & <b>", "days": 3, "tags": [{"a": "it's", "b": [True, 1.5]}]}
CALLS = [("weather", CITY), ("now", {})]
SYSTEM = message("system", "needle-s")
QUESTION, FOLLOW_UP = message("user", "needle-q"), message("user", "needle-u")
ONE, TWO = result("000000000", "needle-r0"), result("000000001", "needle-r1")


def call_message(number: int, **fields: object) -> Json:
    calls = [
        {"id": f"00000000{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for i, (name, args) in enumerate(CALLS[:number])
    ]
    return message("assistant", "", tool_calls=calls, **fields)


CALL_WITH_THOUGHTS = call_message(1, reasoning_content="needle-t")
ANSWER_WITH_THOUGHTS = message("assistant", "needle-a", reasoning_content="needle-o")
ANSWER = message("assistant", "needle-a")
TURNS = [QUESTION, call_message(2), ONE, TWO, ANSWER, FOLLOW_UP]
CONVERSATIONS: dict[str, tuple[Sequence[TemplateMessage], Sequence[Json], Json]] = {
    "a system message": ([SYSTEM, QUESTION], [], {}),
    "several turns": ([SYSTEM, QUESTION, ANSWER, FOLLOW_UP], [], {}),
    "definitions of tools": ([SYSTEM, QUESTION], TOOLS, {}),
    "one call": ([SYSTEM, QUESTION, call_message(1), ONE], TOOLS, {}),
    "two parallel calls": ([QUESTION, call_message(2), ONE, TWO], TOOLS, {}),
    "results and another question": ([SYSTEM, *TURNS], TOOLS, {}),
    "thoughts": ([QUESTION, CALL_WITH_THOUGHTS, ONE, ANSWER_WITH_THOUGHTS, FOLLOW_UP], TOOLS, {}),
    "a call is required": ([SYSTEM, QUESTION], TOOLS, {"tool_choice": "required"}),
    "no system message": ([QUESTION, ANSWER, FOLLOW_UP], [], {}),
    "a long one": ([SYSTEM, *[*TURNS, ANSWER] * 12, FOLLOW_UP], TOOLS, {}),
}


class ShippedTemplate:
    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.template = ChatTemplate(path.read_text(), bos_text="<s>", eos_text="</s>")
        self.form = format_for(self.template)
        self.reasoning = template_reasoning(self.template)
        tokenizer = FakeTokenizer()
        names = ControlNames(tokenizer.control_tokens)
        self._prompts = ChatPrompts(self.template, tokenizer, self.form, names, self.reasoning)

    def rendered(
        self, messages: Sequence[TemplateMessage], tools: Sequence[Json] = (), **variables: object
    ) -> str:
        conversation = Conversation(
            messages=messages, tools=tools, variables=variables, finds_boundaries=False
        )
        return FakeTokenizer().decode(self._prompts.prompt(conversation).tokens, special=True)

    def is_whole(self, name: str) -> bool:
        """Return True if all texts, tools and calls of a conversation are shown, and its calls read back."""
        messages, tools, variables = CONVERSATIONS[name]
        text = self.rendered(messages, tools, **variables)
        texts = [str(one["content"]) for one in messages if one["content"]]
        sent = [call["function"] for one in messages for call in one.get("tool_calls", ())]  # type: ignore[attr-defined]
        needles = [*texts, *(str(each["function"]["name"]) for each in tools)]
        is_shown = all(text.count(one) >= needles.count(one) for one in needles)
        expected = [(each["name"], json.loads(each["arguments"])) for each in sent]
        turns = [turn for turn in re.split("needle-[qu]", text) if "needle-r" in turn]
        calls = [call for turn in turns for call in read(self.form.name, until_last_result(turn))]
        return is_shown and calls == expected

    @property
    def facts(self) -> Facts:
        shape = self.template.shape.calls
        calls = "words" if shape is None or self.form.replaces_template else "template"
        if calls == "template" and shape is not None and shape.one_by_one:
            calls = "one by one"
        now = self.rendered([QUESTION, CALL_WITH_THOUGHTS, ONE], TOOLS, **thinking_variables(self))
        later = self.rendered([QUESTION, ANSWER_WITH_THOUGHTS, FOLLOW_UP], **thinking_variables(self))
        shown = {"calls": "needle-t" in now, "earlier": "needle-o" in later}
        thoughts = [kind for kind, is_shown in shown.items() if is_shown]
        pair = self.rendered([QUESTION, call_message(2), ONE, TWO], TOOLS)
        return Facts(
            self.name,
            self.form.name,
            self.reasoning.form.name if self.reasoning else "",
            calls,
            ", ".join(thoughts),
            sum(self.is_whole(name) for name in CONVERSATIONS),
            until_last_result(pair.partition("needle-q")[2]),
        )


def thinking_variables(shipped: ShippedTemplate) -> Json:
    return switch(on=True, levels=shipped.reasoning.form.levels) if shipped.reasoning else {}


def until_last_result(text: str) -> str:
    """Return the text up to the last result."""
    return text[: text.rfind("needle-r")]


ENDS = re.compile(r"<\|call\|>|<\|role_end\|>|needle-r\d")
"""Marks that end outputs. Templates for single calls show each with its result."""


def read(form: str, text: str, pieces: random.Random | None = None) -> list[tuple[str, object]]:
    """Return the calls in rendered turns, as the reader finds them in outputs."""
    kind = TOOL_FORMATS[form]
    calls: list[tuple[str, str]] = []
    for turn in ENDS.split(text):
        if form == "harmony":
            begin = turn.find(" to=functions.")
        elif kind.marker:
            begin = 0
        else:
            found = re.search(regex_of((*kind.opening, *kind.head)), turn)
            begin = found.start() if found else -1
        if begin < 0:
            continue
        reader, output = kind.reader({"weather": {"city": frozenset()}, "now": {}}), turn[begin:]
        parts = [x for piece in (cut(output, pieces) if pieces else [output]) for x in reader.feed(piece)]
        for part in [*parts, *reader.finish()]:
            if isinstance(part, CallBegin):
                calls.append((part.name, ""))
            elif isinstance(part, CallArguments):
                calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return [(name, json.loads(arguments)) for name, arguments in calls]


FORGETFUL = ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B")
"""Templates that leave out the mark before calls of later turns."""


@functools.cache
def recorded_facts() -> tuple[Facts, ...]:
    return tuple(Facts(*json.loads(line)) for line in RECORD.read_text("utf-8").splitlines())


@pytest.mark.slow
def test_the_facts_of_every_template_are_recorded() -> None:
    if not FOLDERS:
        pytest.skip("llama.cpp's templates are only where scripts/bootstrap has built it")
    facts = [ShippedTemplate(path).facts for path in sorted(FOLDERS[0].glob("*.jinja"))]
    assert "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in facts) == external_file(RECORD)


@pytest.mark.parametrize("facts", recorded_facts(), ids=lambda facts: facts.name)
def test_recorded_calls_are_read_back_in_any_pieces(facts: Facts) -> None:
    assert facts.num_rendered == len(CONVERSATIONS) - (facts.name in FORGETFUL)
    rng = random.Random(5)
    assert read(facts.form, facts.turn) == CALLS
    for _ in range(8):
        assert read(facts.form, facts.turn, rng) == CALLS


HEAD = """# Chat templates

The server was tested with ten conversations in each chat template that llama.cpp ships: a system message,
several turns, tools, calls, results, thoughts, a required call, no system message, and a long one. A
conversation counts if the prompt shows all its texts and tools, and if the server's parser reads each call
of the prompt as it was sent. [Tools](structured-output.md#tools) describes the formats,
[Reasoning](reasoning.md) the marks of thoughts.

- *Earlier calls*: shown by the template, by the template one by one, or in words.
- *Thoughts*: shown of the `calls` since the last question, and of `earlier` answers.

"""


def test_the_manual_shows_the_templates() -> None:
    heads = ("Template", "Format", "Thoughts' marks", "Earlier calls", "Thoughts", "Conversations")
    page = HEAD + table(heads, (facts.row for facts in recorded_facts()))
    assert page == external_file(Path(__file__).parents[2] / "docs" / "templates.md", format=".txt")
