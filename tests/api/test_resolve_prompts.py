"""Conversations and prompts become tokens."""

from __future__ import annotations

import pytest

from openai_cpu_server.errors import InvalidRequest
from tests.api.calls import tokens_of
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.resolving import chat, complete, param_of
from tests.fakes import VOCAB_SIZE


def test_a_conversation_is_rendered_and_begins_with_bos() -> None:
    (prompt,) = chat(messages=[{"role": "user", "content": "hi"}]).prompts
    assert prompt.tokens == (0, 300, *tokens_of("hi"), 301)


def test_bos_of_the_template_is_not_doubled() -> None:
    (prompt,) = chat(template="{{ bos_token }}{{ messages[0].content }}").prompts
    assert prompt.tokens == (0, *tokens_of("hi"))


def test_a_last_message_of_the_assistant_is_continued() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]
    (prompt,) = chat(messages=messages).prompts
    assert prompt.tokens == (0, 300, *tokens_of("hi"), 301, *tokens_of("Sure, "))


def test_text_parts_and_the_developer_are_understood() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (prompt,) = chat(
        messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]
    ).prompts
    text = FakeTokenizer().decode(list(prompt.tokens), special=True)
    assert text == "<s><|system|>a\nb<|user|>c<|assistant|>"


def test_a_template_that_raises_is_quoted() -> None:
    messages = [{"role": "user", "content": "4"}, {"role": "system", "content": "5"}]
    with pytest.raises(InvalidRequest, match="too late") as error:
        chat(messages=messages)
    assert (param_of(error), error.value.code) == ("messages", "chat_template_failed")


@pytest.mark.parametrize("template", [None, ""])
def test_no_template_is_no_chat(template: str | None) -> None:
    if template is None:
        with pytest.raises(InvalidRequest, match="--chat-template"):
            chat(template=template)
    else:
        assert chat(template=template).prompts[0].tokens == (0,)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[1].content"),
        ({"role": "tool", "content": "4"}, "messages[1].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages[1].tool_call_id"),
        (
            {
                "role": "user",
                "content": "x",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
            },
            "messages[1].tool_calls",
        ),
    ],
)
def test_roles_have_their_own_fields(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        chat(messages=[{"role": "user", "content": "hi"}, message, {"role": "user", "content": "hi"}])
    assert param_of(error) == param


def test_tool_calls_need_no_content() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls, "name": "bot"},
        {"role": "user", "content": "hi"},
    ]
    template = (
        "{% for m in messages %}{{ m.name }}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% endfor %}"
    )
    call = chat(messages=messages, template=template)
    assert call.prompts[0].tokens == (0, *tokens_of('botf{"a": 1}hi'))


# -- completion prompts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [(0, *tokens_of("hi"))]),
        (["a", "b<|user|>"], [(0, *tokens_of("a")), (0, *tokens_of("b"), 300)]),
        ([5, 6], [(5, 6)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
        ("", [(0,)]),
    ],
)
def test_prompts_in_all_shapes(prompt: object, expected: list[tuple[int, ...]]) -> None:
    call = complete(prompt=prompt, n=2)
    assert [p.tokens for p in call.prompts] == expected
    assert [request.tokens for request in call.requests] == [t for t in expected for _ in range(2)]
    assert [request.id for request in call.requests] == [f"{call.id}/{i}" for i in range(2 * len(expected))]


def test_choices_of_every_prompt_begin_at_the_same_seed() -> None:
    assert [r.sampling.seed for r in complete(prompt=["a", "b"], n=2, seed=9).requests] == [9, 10, 9, 10]


def test_an_empty_prompt_needs_a_token_to_begin_with() -> None:
    with pytest.raises(InvalidRequest) as error:
        complete(prompt=["x", ""], tokenizer=FakeTokenizer(adds_bos=False))
    assert param_of(error) == "prompt"


@pytest.mark.parametrize("prompt", [[VOCAB_SIZE], [-1], [[1], [10**30]]])
def test_token_ids_are_checked(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        complete(prompt=prompt)
    assert param_of(error) == "prompt"


@pytest.mark.parametrize(
    ("prompt", "text"), [("hi", "hi"), ([0, *tokens_of("hi")], "hi"), ([300, *tokens_of("hi")], "<|user|>hi")]
)
def test_what_is_echoed(prompt: object, text: str) -> None:
    assert complete(prompt=prompt, echo=True).prompts[0].echo == text
    assert complete(prompt=prompt).prompts[0].echo is None


def test_echo_with_logprobs_scores_the_prompt() -> None:
    (request,) = complete(echo=True, logprobs=2, max_tokens=0).requests
    assert (request.prompt_logprobs, request.top_logprobs, request.max_tokens) == (True, 2, 0)
    assert not complete(logprobs=2).requests[0].prompt_logprobs
    assert not complete(echo=True).requests[0].prompt_logprobs


def test_a_suffix_is_filled_in_by_models_that_can() -> None:
    call = complete(prompt="a", suffix="b", tokenizer=FakeTokenizer(has_fim=True))
    assert call.prompts[0].tokens == (0, 400, *tokens_of("a"), 401, *tokens_of("b"), 402)


@pytest.mark.parametrize(("has_fim", "echo"), [(False, False), (True, True)])
def test_a_suffix_that_cannot_be_honoured_is_refused(has_fim: bool, echo: bool) -> None:
    with pytest.raises(InvalidRequest) as error:
        complete(suffix="b", echo=echo, tokenizer=FakeTokenizer(has_fim=has_fim))
    assert param_of(error) == "suffix"
