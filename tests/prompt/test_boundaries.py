"""A prompt says where other prompts may part from it, whatever its template does."""

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
from tests.prompt.test_conversation import calling, said
from tests.prompt.test_literals import DEMO, TEMPLATES, TOOL, UNUSABLE, controls, opened, prompts
from tests.prompt.test_reasoning_templates import template
from tests.tiny_model import tiny_model_path

Messages = list[dict[str, Any]]


def step(where: str, found: str) -> Messages:
    call = calling("abcdefghi", content="", arguments=f'{{"where": "{where}"}}', name="look")
    result = said("tool", found, tool_call_id="abcdefghi", name="look")
    return [{**call, "reasoning_content": f"It is in {where}"}, result]


SYSTEM = said("system", "You are kind.")
FIRST = [said("user", "Who?"), said("assistant", "Me.", reasoning_content="Hm.")]
ASKED: list[tuple[Messages, list[Any]]] = [
    ([said("user", "What?")], []),
    ([SYSTEM, said("user", "What?")], []),
    ([SYSTEM, *FIRST, said("user", "What?")], []),
    ([*FIRST, said("user", "What?")], [TOOL]),
    ([SYSTEM, *FIRST, said("user", "What?")], [TOOL]),
    ([SYSTEM, *FIRST, said("user", "What?"), *step("Rome", "Ruins"), *step("Bonn", "Trees")], [TOOL]),
]


def others(messages: Messages) -> list[Messages]:
    """What others ask, and what is asked next."""
    head = [*takewhile(lambda message: message["role"] == "system", messages)]
    going_on = [*messages, said("assistant", "So."), said("user", "Ah?")]
    is_question = messages[-1]["role"] == "user"
    last = [*messages[:-1], said("user", "Zoë!")] if is_question else [*messages, *step("Zug", "Zebras")]
    return [[*head, said("user", "Zoë!")], going_on, last]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def made(prompts: ChatPrompts, messages: Messages, tools: Any = (), **variables: object) -> ChatPrompt | None:
    """None: the template refuses it."""
    asked = Conversation(messages=messages, tools=tools, variables=variables, skips_thinking=bool(variables))
    try:
        return prompts.prompt(asked)
    except (TemplateFailed, InvalidRequest):
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_boundary_is_the_last_control_token_before_others_differ(name: str) -> None:
    """And before each of these others there is one, unless the template refuses them."""
    tokenizer = FakeTokenizer(control=controls(name), adds_bos=False)
    asked_for = prompts(name, tokenizer)
    names = [token.text for token in tokenizer.control_tokens]
    marks = {mark for (mark,) in tokenizer.encode_all(names, add_special=False, parse_special=True)}
    num_tried = 0
    for (messages, tools), thinking in product(ASKED, ({}, switch(on=False))):
        if (asked := made(asked_for, messages, tools, **thinking)) is None:
            continue
        told = [made(asked_for, other, tools, **thinking) for other in others(messages)]
        lengths = {common(asked.tokens, other.tokens) for other in told if other is not None}
        behind = [at + 1 for at, token in enumerate(asked.tokens) if token in marks]
        wanted = {max((at for at in behind if at <= length), default=0) for length in lengths}
        assert asked.boundaries == tuple(sorted(wanted - {0}))
        num_tried += len(lengths)
    assert num_tried > 4 or name in UNUSABLE


CHATML = [
    name for name in TEMPLATES if "<|im_start|>" in controls(name) and "<|im_middle|>" not in controls(name)
]
PIECES = ["a", "the ", " ", "\n", "\n\n", "é", "<|im_end|>", "<|", ".", "1"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
FILES = st.sampled_from([DEMO, tiny_model_path()])


@settings(max_examples=50)
@given(FILES, st.sampled_from(CHATML), st.lists(TEXTS, min_size=6, max_size=6), st.booleans())
def test_real_tokens_agree_up_to_a_boundary(
    path: Path, name: str, texts: list[str], has_system: bool
) -> None:
    """Whatever tokenizers merge, byte pairs or SentencePiece, and whatever texts spell. The tokens are those
    of the whole text."""
    real, compiled = opened(path), template(name)
    names, reasoning = ControlNames(control_tokens(real)), template_reasoning(compiled)
    asked_for = ChatPrompts(compiled, real, format_for(compiled), names, reasoning)
    system, who, me, what, so, zoe = texts
    head = [said("system", system)] * has_system
    messages = [*head, said("user", who), said("assistant", me), said("user", what)]
    asked, last = made(asked_for, messages), said("user", zoe)
    if asked is None:
        return  # it wants tools
    others = [[*head, last], [*messages[:-1], last], [*messages, said("assistant", so), last]]
    told = [made(asked_for, other) for other in others]
    assert 2 <= len(asked.boundaries) <= 3
    for boundary, other in zip((asked.boundaries[0], *asked.boundaries[-2:]), told, strict=True):
        assert other is not None
        assert asked.tokens[:boundary] == other.tokens[:boundary]
    if not any("<|" in text or "|>" in text for text in texts):
        text = render_chat(compiled, messages, reasoning=reasoning).text
        add_special = needs_special_tokens(text, bos_text=real.bos_text)
        assert list(asked.tokens) == real.encode(text, add_special=add_special, parse_special=True)


def prompt(
    *messages: dict[str, Any],
    source: str = FakeTokenizer.chat_template,
    written: Mapping[int, Sequence[int]] | None = None,
    names: Sequence[ControlToken] = FakeTokenizer().control_tokens,
) -> ChatPrompt:
    compiled = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    asked_for = ChatPrompts(compiled, FakeTokenizer(), TOOL_FORMATS["demo"], ControlNames(names))
    return asked_for.prompt(Conversation(messages=list(messages), written=written or {}))


def boundaries(*messages: dict[str, Any], **more: Any) -> tuple[int, ...]:
    return prompt(*messages, **more).boundaries


HI = said("user", "hi")


def test_bos_and_the_tokens_of_written_answers_count() -> None:
    """`<s>`, `<|user|>`, two letters, `<|assistant|>`; then three tokens that nobody tokenises."""
    assert boundaries(HI) == (2, 5)
    assert boundaries(HI, said("assistant", "Yes"), HI) == (2, 9, 12)
    assert boundaries(HI, said("assistant", "Yes, I am"), HI, written={1: (7, 302, 7)}) == (2, 9, 12)


def test_an_answer_that_has_begun_and_what_a_text_spells_have_no_boundary() -> None:
    assert boundaries(HI, said("assistant", "Ye")) == (2, 5)
    assert boundaries(said("user", "<|user|>")) == (2, 3 + len("<|user|>"))


def test_where_no_other_may_part_there_is_no_boundary() -> None:
    one = "{{ raise_exception('one') if messages | length > 1 else '<|user|>' + messages[0].content }}"
    assert boundaries(HI, source=one) == (2,)
    newest_first = "{% for m in messages | reverse %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    assert boundaries(SYSTEM, HI, source=newest_first) == (2,)
    assert boundaries(HI, source="User: {{ messages[0].content }} Assistant:") == ()


def test_there_is_no_cut_before_white_space_that_a_token_strips() -> None:
    names = [ControlToken("<|user|>", strips_behind=True), ControlToken("<|assistant|>")]
    assert boundaries(HI, names=names) == (5,)
