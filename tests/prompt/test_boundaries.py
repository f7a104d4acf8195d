"""Boundaries of a prompt: places where other prompts may diverge from it, with any template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.contract.model_info import ControlToken
from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.llama.model.vocabulary import control_tokens
from openai_cpu_server.prompt.chat_prompts import (
    ChatPrompt,
    ChatPrompts,
    ControlNames,
    Conversation,
    needs_special_tokens,
    render_chat,
)
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import switch, template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, format_for
from tests.api.fake_tokenizer import FakeTokenizer
from tests.prompt.test_conversation import NAMES, call_message, message
from tests.prompt.test_literals import DEMO, TOOL, UNUSABLE, controls, open_vocabulary, prompts
from tests.prompt.test_reasoning_templates import template
from tests.tiny_model import tiny_model_path

Messages = list[dict[str, Any]]


def step(where: str, found: str) -> Messages:
    call = call_message("abcdefghi", content="", arguments=f'{{"where": "{where}"}}', name="look")
    result = message("tool", found, tool_call_id="abcdefghi", name="look")
    return [{**call, "reasoning_content": f"It is in {where}"}, result]


SYSTEM = message("system", "You are kind.")
FIRST = [message("user", "Who?"), message("assistant", "Me.", reasoning_content="Hm.")]
CONVERSATIONS: list[tuple[Messages, list[Any]]] = [
    ([message("user", "What?")], []),
    ([SYSTEM, message("user", "What?")], []),
    ([SYSTEM, *FIRST, message("user", "What?")], []),
    ([*FIRST, message("user", "What?")], [TOOL]),
    ([SYSTEM, *FIRST, message("user", "What?")], [TOOL]),
    ([SYSTEM, *FIRST, message("user", "What?"), *step("Rome", "Ruins"), *step("Bonn", "Trees")], [TOOL]),
]


def diverging_conversations(messages: Messages) -> list[Messages]:
    """Return a new conversation, the next turn of this one, and this one with another last turn."""
    head = [*takewhile(lambda message: message["role"] == "system", messages)]
    next_turn = [*messages, message("assistant", "So."), message("user", "Ah?")]
    is_question = messages[-1]["role"] == "user"
    last = [*messages[:-1], message("user", "Zoë!")] if is_question else [*messages, *step("Zug", "Zebras")]
    return [[*head, message("user", "Zoë!")], next_turn, last]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def try_prompt(
    prompts: ChatPrompts, messages: Messages, tools: Any = (), **variables: object
) -> ChatPrompt | None:
    """Return None if the template refuses the conversation."""
    conversation = Conversation(
        messages=messages, tools=tools, variables=variables, skips_thinking=bool(variables)
    )
    try:
        return prompts.prompt(conversation)
    except (TemplateFailed, InvalidRequest):
        return None


@pytest.mark.parametrize("name", NAMES)
def test_each_boundary_is_the_last_control_token_before_a_difference(name: str) -> None:
    """Every diverging conversation has one, unless the template refuses it."""
    tokenizer = FakeTokenizer(control=controls(name), adds_bos=False)
    chat_prompts = prompts(name, tokenizer)
    names = [token.text for token in tokenizer.control_tokens]
    marks = {mark for (mark,) in tokenizer.encode_all(names, add_special=False, parse_special=True)}
    num_tried = 0
    for (messages, tools), thinking in product(CONVERSATIONS, ({}, switch(on=False))):
        if (whole := try_prompt(chat_prompts, messages, tools, **thinking)) is None:
            continue
        other_prompts = [
            try_prompt(chat_prompts, other, tools, **thinking) for other in diverging_conversations(messages)
        ]
        lengths = {common(whole.tokens, other.tokens) for other in other_prompts if other is not None}
        ends = [at + 1 for at, token in enumerate(whole.tokens) if token in marks]
        expected = {max((at for at in ends if at <= length), default=0) for length in lengths}
        assert whole.boundaries == tuple(sorted(expected - {0}))
        num_tried += len(lengths)
    assert num_tried > 4 or name in UNUSABLE


CHATML = [
    name for name in NAMES if "<|im_start|>" in controls(name) and "<|im_middle|>" not in controls(name)
]
PIECES = ["a", "the ", " ", "\n", "\n\n", "é", "<|im_end|>", "<|", ".", "1"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
FILES = st.sampled_from([DEMO, tiny_model_path()])


@settings(max_examples=50)
@given(FILES, st.sampled_from(CHATML), st.lists(TEXTS, min_size=6, max_size=6), st.booleans())
def test_real_tokens_agree_up_to_a_boundary(
    path: Path, name: str, texts: list[str], has_system: bool
) -> None:
    """Holds for byte pairs and SentencePiece, and for texts with control tokens. The tokens are those of the
    whole text."""
    real, compiled = open_vocabulary(path), template(name)
    names, reasoning = ControlNames(control_tokens(real)), template_reasoning(compiled)
    chat_prompts = ChatPrompts(compiled, real, format_for(compiled), names, reasoning)
    system, question, reply, last_question, last_reply, other_question = texts
    head = [message("system", system)] * has_system
    messages = [*head, message("user", question), message("assistant", reply), message("user", last_question)]
    whole, last = try_prompt(chat_prompts, messages), message("user", other_question)
    if whole is None:
        return  # the template requires tools
    conversations = [
        [*head, last],
        [*messages[:-1], last],
        [*messages, message("assistant", last_reply), last],
    ]
    other_prompts = [try_prompt(chat_prompts, other) for other in conversations]
    assert 2 <= len(whole.boundaries) <= 3
    for boundary, other in zip((whole.boundaries[0], *whole.boundaries[-2:]), other_prompts, strict=True):
        assert other is not None
        assert whole.tokens[:boundary] == other.tokens[:boundary]
    if not any("<|" in text or "|>" in text for text in texts):
        text = render_chat(compiled, messages, reasoning=reasoning).text
        add_special = needs_special_tokens(text, bos_text=real.bos_text)
        assert list(whole.tokens) == real.encode(text, add_special=add_special, parse_special=True)


def prompt(
    *messages: dict[str, Any],
    source: str = FakeTokenizer.chat_template,
    written: Mapping[int, Sequence[int]] | None = None,
    names: Sequence[ControlToken] = FakeTokenizer().control_tokens,
) -> ChatPrompt:
    compiled = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    chat_prompts = ChatPrompts(compiled, FakeTokenizer(), TOOL_FORMATS["demo"], ControlNames(names))
    return chat_prompts.prompt(Conversation(messages=list(messages), written=written or {}))


def boundaries(*messages: dict[str, Any], **more: Any) -> tuple[int, ...]:
    return prompt(*messages, **more).boundaries


HI = message("user", "hi")


def test_bos_and_the_tokens_of_written_answers_count() -> None:
    """`<s>`, `<|user|>`, two letters, `<|assistant|>`; then three tokens as they were sampled."""
    assert boundaries(HI) == (2, 5)
    assert boundaries(HI, message("assistant", "Yes"), HI) == (2, 9, 12)
    assert boundaries(HI, message("assistant", "Yes, I am"), HI, written={1: (7, 302, 7)}) == (2, 9, 12)


def test_a_prefilled_answer_and_control_tokens_in_a_text_have_no_boundary() -> None:
    assert boundaries(HI, message("assistant", "Ye")) == (2, 5)
    assert boundaries(message("user", "<|user|>")) == (2, 3 + len("<|user|>"))


def test_a_prompt_has_no_boundary_where_none_may_diverge() -> None:
    one = "{{ raise_exception('one') if messages | length > 1 else '<|user|>' + messages[0].content }}"
    assert boundaries(HI, source=one) == (2,)
    newest_first = "{% for m in messages | reverse %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    assert boundaries(SYSTEM, HI, source=newest_first) == (2,)
    assert boundaries(HI, source="User: {{ messages[0].content }} Assistant:") == ()


def test_a_prompt_has_no_boundary_before_white_space_that_a_token_strips() -> None:
    names = [ControlToken("<|user|>", strips_behind=True), ControlToken("<|assistant|>")]
    assert boundaries(HI, names=names) == (5,)
