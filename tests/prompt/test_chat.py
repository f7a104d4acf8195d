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


@pytest.mark.parametrize(
    ("messages", "more", "expected"),
    [
        ([USER], {}, "<user>Hello</><assistant>"),
        ([USER, PREFILL], {}, "<user>Hello</><assistant>Sure, "),
        ([USER, PARTS], {}, "<user>Hello</><assistant>Sure,\nso"),
        ([USER, PREFILL], {"add_generation_prompt": False}, "<user>Hello</><assistant>Sure, </>"),
        ([USER], {"tools": [{}, {}], "extra": {"style": "!"}}, "<user>Hello</><tools>2</><assistant>!"),
        ([USER], {"tools": []}, "<user>Hello</><assistant>"),
    ],
    ids=[
        "an answer begins afresh",
        "a prefill continues the assistant's turn",
        "a prefill in parts",
        "without a generation prompt the last turn is finished",
        "tools and extra variables reach the template",
        "no tools",
    ],
)
def test_what_is_rendered(messages: list[Message], more: dict[str, Any], expected: str) -> None:
    assert render_chat(TURNS, messages, **more).text == expected


def test_prefill_with_tool_calls_is_refused() -> None:
    calling = {"role": "assistant", "tool_calls": [{"id": "1"}]}
    with pytest.raises(InvalidRequest, match="answers must follow"):
        render_chat(TURNS, [USER, calling])


def test_template_that_wants_parts_gets_parts() -> None:
    parts = ChatTemplate(
        "{% for m in messages %}{% for p in m.content %}({{ p.type }}:{{ p.text }}){% endfor %}{% endfor %}",
        bos_text="",
        eos_text="",
    )
    assert render_chat(parts, [USER]).text == "(text:Hello)"


def test_failure_of_the_template() -> None:
    picky = ChatTemplate("{{ raise_exception('no system role') }}", bos_text="", eos_text="")
    with pytest.raises(TemplateFailed, match=r"^no system role$"):
        render_chat(picky, [USER])


@pytest.mark.parametrize(
    ("text", "bos_text", "expected"),
    [
        ("<s>Hi", "<s>", False),
        ("\n\n<s>Hi", "<s>", False),
        ("Hi<s>", "<s>", True),
        ("Hi", "", True),
        ("", "<s>", True),
    ],
)
def test_bos_is_never_doubled(text: str, bos_text: str, expected: bool) -> None:
    assert needs_special_tokens(text, bos_text=bos_text) is expected
