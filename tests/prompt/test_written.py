"""Earlier answers stand in the prompt as the tokens that were sampled, whatever the template does to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai_cpu_server.prompt.chat_prompts import marked_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from tests.api.fake_tokenizer import FakeTokenizer
from tests.prompt.test_boundaries import HI, prompt
from tests.prompt.test_conversation import call_message, message, result

TRIMMING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
BLANK = (  # a blank that only earlier answers have
    "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)


def answer(text: str) -> dict[str, Any]:
    return message("assistant", text)


def test_answers_and_calls_keep_their_sampled_tokens() -> None:
    first = prompt(HI, source=TRIMMING).tokens
    again = prompt(HI, answer(" Hello \n"), HI, source=TRIMMING, written={1: (7, 7, 7)}).tokens
    assert again[: len(first) + 3] == (*first, 7, 7, 7)
    assert FakeTokenizer().decode(list(again[len(first) + 3 :]), special=True).startswith("</s><user>hi</s>")
    called = prompt(HI, call_message("c"), result("c", "3"), source=TRIMMING, written={1: (7, 8)}).tokens
    assert called[: len(first) + 2] == (*first, 7, 8)


def test_a_blank_that_only_history_has_is_left_out() -> None:
    first, second = (HI,), (HI, answer("a"), HI)
    again = prompt(*second, answer("b"), HI, source=BLANK, written={1: (7,), 3: (8,)}).tokens
    for messages, written, sampled in ((first, {}, 7), (second, {1: (7,)}, 8)):
        before = prompt(*messages, source=BLANK, written=written).tokens
        assert again[: len(before) + 1] == (*before, sampled)


def test_a_template_that_does_not_show_an_answer_gets_no_tokens_of_it() -> None:
    silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    messages = [HI, answer("Hello"), HI]
    assert prompt(*messages, source=silent, written={1: (7,)}) == prompt(*messages, source=silent)
    strict = "{{ raise_exception('no') if messages | length > 2 else messages[0].content }}"

    def render(conversation: Sequence[Mapping[str, object]]) -> str:
        return ChatTemplate(strict, bos_text="", eos_text="").render(conversation)

    assert marked_chat(messages, {1: (7,)}, render) is None
