"""From OpenAI's messages to the prompt's text."""

from __future__ import annotations

import pytest

from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.prompt.chat import needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate

TURNS = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if tools %}<tools>{{ tools | length }}</>{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ style }}",
    bos_text="<s>",
    eos_text="</s>",
)
USER = {"role": "user", "content": "Hello"}
PREFILL = {"role": "assistant", "content": "Sure, "}


def test_answer_begins_afresh() -> None:
    assert render_chat(TURNS, [USER]).text == "<user>Hello</><assistant>"


def test_prefill_continues_the_assistants_turn() -> None:
    assert render_chat(TURNS, [USER, PREFILL]).text == "<user>Hello</><assistant>Sure, "


def test_prefill_in_parts() -> None:
    parts = [{"type": "text", "text": "Sure,"}, {"type": "text", "text": "so"}]
    rendered = render_chat(TURNS, [USER, {"role": "assistant", "content": parts}])
    assert rendered.text == "<user>Hello</><assistant>Sure,\nso"


def test_without_generation_prompt_the_last_turn_is_finished() -> None:
    rendered = render_chat(TURNS, [USER, PREFILL], add_generation_prompt=False)
    assert rendered.text == "<user>Hello</><assistant>Sure, </>"


def test_prefill_with_tool_calls_is_refused() -> None:
    calling = {"role": "assistant", "tool_calls": [{"id": "1"}]}
    with pytest.raises(InvalidRequest, match="answers must follow"):
        render_chat(TURNS, [USER, calling])


def test_tools_and_extra_reach_the_template() -> None:
    assert render_chat(TURNS, [USER], tools=[{}, {}], extra={"style": "!"}).text == (
        "<user>Hello</><tools>2</><assistant>!"
    )
    assert render_chat(TURNS, [USER], tools=[]).text == "<user>Hello</><assistant>"


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
    [("<s>Hi", "<s>", False), ("Hi<s>", "<s>", True), ("Hi", "", True), ("", "<s>", True)],
)
def test_bos_is_never_doubled(text: str, bos_text: str, expected: bool) -> None:
    assert needs_special_tokens(text, bos_text=bos_text) is expected
