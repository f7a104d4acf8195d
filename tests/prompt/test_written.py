"""Earlier answers stand in the prompt as the tokens that were sampled, whatever the template does to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from openai_cpu_server.prompt.chat import ControlNames
from openai_cpu_server.prompt.chat_prompts import ChatPrompts, Conversation, Message, Written, marked_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_tokenizer import FakeTokenizer

USER = {"role": "user", "content": "hi"}
TRIMMING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


Tokens = Callable[..., tuple[int, ...]]


def prompts(source: str) -> Tokens:
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    tokenizer = FakeTokenizer()
    names = ControlNames(tokenizer.control_tokens)
    made = ChatPrompts(template, tokenizer, TOOL_FORMATS["demo"], names)

    def tokens(messages: Sequence[Message], written: Written | None = None) -> tuple[int, ...]:
        return made.prompt(Conversation(messages=messages, written=written or {})).tokens

    return tokens


def said(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def test_an_answer_is_what_was_sampled_not_what_the_template_makes_of_it() -> None:
    sampled = (7, 7, 7)
    first = prompts(TRIMMING)([USER])
    again = prompts(TRIMMING)([USER, said(" Hello \n"), USER], {1: sampled})
    assert again[: len(first) + 3] == first + sampled
    assert FakeTokenizer().decode(list(again[len(first) + 3 :]), special=True).startswith("</s><user>hi</s>")


def test_a_call_is_what_was_sampled() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    asked = [USER, {**said(""), "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "3"}]
    first = prompts(TRIMMING)([USER])
    assert prompts(TRIMMING)(asked, {1: (7, 8)})[: len(first) + 2] == (*first, 7, 8)


def test_a_template_that_shows_no_such_answer_is_left_alone() -> None:
    silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    messages = [USER, said("Hello"), USER]
    assert prompts(silent)(messages, {1: (7,)}) == prompts(silent)(messages)
    strict = "{{ raise_exception('no') if messages | length > 2 else messages[0].content }}"

    def render(given: Sequence[Mapping[str, object]]) -> str:
        return ChatTemplate(strict, bos_text="", eos_text="").render(given)

    assert marked_chat([USER, said("x"), USER], {1: (7,)}, render) is None


def test_a_blank_that_only_history_has_is_left_out() -> None:
    blank = (
        "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]"
        "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
    )
    first = prompts(blank)([USER])
    again = prompts(blank)([USER, said("a"), USER, said("b"), USER], {1: (7,), 3: (8,)})
    assert again[: len(first) + 1] == (*first, 7)
    second = prompts(blank)([USER, said("a"), USER], {1: (7,)})
    assert again[: len(second) + 1] == (*second, 8)
