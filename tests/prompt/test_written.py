"""Earlier answers stand in the prompt as the tokens that were sampled, whatever the template does to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai_cpu_server.prompt.chat_prompts import marked_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from tests.api.fake_tokenizer import FakeTokenizer
from tests.prompt.test_boundaries import HI, prompt
from tests.prompt.test_conversation import calling, result, said

TRIMMING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
BLANK = (  # one that only history has
    "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)


def answer(text: str) -> dict[str, Any]:
    return said("assistant", text)


def test_an_answer_or_a_call_is_what_was_sampled_not_what_the_template_makes_of_it() -> None:
    first = prompt(HI, source=TRIMMING).tokens
    again = prompt(HI, answer(" Hello \n"), HI, source=TRIMMING, written={1: (7, 7, 7)}).tokens
    assert again[: len(first) + 3] == (*first, 7, 7, 7)
    assert FakeTokenizer().decode(list(again[len(first) + 3 :]), special=True).startswith("</s><user>hi</s>")
    called = prompt(HI, calling("c"), result("c", "3"), source=TRIMMING, written={1: (7, 8)}).tokens
    assert called[: len(first) + 2] == (*first, 7, 8)


def test_a_blank_that_only_history_has_is_left_out() -> None:
    first, second = (HI,), (HI, answer("a"), HI)
    again = prompt(*second, answer("b"), HI, source=BLANK, written={1: (7,), 3: (8,)}).tokens
    for messages, written, sampled in ((first, {}, 7), (second, {1: (7,)}, 8)):
        before = prompt(*messages, source=BLANK, written=written).tokens
        assert again[: len(before) + 1] == (*before, sampled)


def test_a_template_that_shows_no_such_answer_is_left_alone() -> None:
    silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    messages = [HI, answer("Hello"), HI]
    assert prompt(*messages, source=silent, written={1: (7,)}) == prompt(*messages, source=silent)
    strict = "{{ raise_exception('no') if messages | length > 2 else messages[0].content }}"

    def render(given: Sequence[Mapping[str, object]]) -> str:
        return ChatTemplate(strict, bos_text="", eos_text="").render(given)

    assert marked_chat(messages, {1: (7,)}, render) is None
