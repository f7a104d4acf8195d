"""From OpenAI's messages to the prompt's text."""

from __future__ import annotations

from typing import Any

import pytest

from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.prompt.chat import needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.template import Message

TURNS = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if tools %}<tools>{{ tools | length }}</>{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ style }}",
    bos_text="<s>",
    eos_text="</s>",
)
USER = {"role": "user", "content": "Hello"}
PREFILL = {"role": "assistant", "content": "Sure, "}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "Sure,"}, {"type": "text", "text": "so"}]}
RENDERED: dict[str, tuple[list[Message], dict[str, Any], str]] = {
    "an answer begins afresh": ([USER], {}, "<user>Hello</><assistant>"),
    "a prefill continues the turn": ([USER, PREFILL], {}, "<user>Hello</><assistant>Sure, "),
    "a prefill in parts": ([USER, PARTS], {}, "<user>Hello</><assistant>Sure,\nso"),
    "without a generation prompt the last turn is finished": (
        [USER, PREFILL], {"add_generation_prompt": False}, "<user>Hello</><assistant>Sure, </>"),
    "tools and extra variables": (
        [USER], {"tools": [{}, {}], "extra": {"style": "!"}}, "<user>Hello</><tools>2</><assistant>!"),
    "no tools": ([USER], {"tools": []}, "<user>Hello</><assistant>"),
}  # fmt: skip


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_rendered(name: str) -> None:
    messages, more, expected = RENDERED[name]
    assert render_chat(TURNS, messages, **more).text == expected


def test_prefill_with_tool_calls_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="answers must follow"):
        render_chat(TURNS, [USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}])


def test_template_that_wants_parts_gets_parts() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}({{ p.type }}:{{ p.text }}){% endfor %}{% endfor %}"
    )
    parts = ChatTemplate(source, bos_text="", eos_text="")
    assert render_chat(parts, [USER]).text == "(text:Hello)"


def test_failure_of_the_template() -> None:
    picky = ChatTemplate("{{ raise_exception('no system role') }}", bos_text="", eos_text="")
    with pytest.raises(TemplateFailed, match=r"^no system role$"):
        render_chat(picky, [USER])


@pytest.mark.parametrize(
    ("text", "bos_text", "expected"),
    [
        *(("<s>Hi", "<s>", False), ("\n\n<s>Hi", "<s>", False)),
        *(("Hi<s>", "<s>", True), ("Hi", "", True), ("", "<s>", True)),
    ],
)
def test_bos_is_never_doubled(text: str, bos_text: str, expected: bool) -> None:
    assert needs_special_tokens(text, bos_text=bos_text) is expected
