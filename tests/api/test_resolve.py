"""Bodies become requests: sampling, limits, priority, fan-out, conversations and prompts; what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from openai_cpu_server.api.asking.ask import AskedConversation, AskedMessage, TakenMedia, mark_of
from openai_cpu_server.api.asking.call import ModelContext
from openai_cpu_server.api.asking.prompts import last_turn
from openai_cpu_server.api.asking.resolve import fingerprint, resolve
from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.contract.media import MediaRows, Sound
from openai_cpu_server.contract.request import DryPenalty, Priority, Sampling
from openai_cpu_server.errors import InvalidRequest, ModelNotFound, PromptTooLong
from openai_cpu_server.http.context import Sender
from openai_cpu_server.models.served import ServedTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.calls import tokens_of
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.resolving import CONTEXT, OPTIONS, chat, complete, refused, resolved
from tests.api.serving import TEMPLATE, served
from tests.fakes import FAKE_INFO, STATEFUL_INFO, VOCAB_SIZE
from tests.reading import model_read_here


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_words_about_a_sound_are_not_alike_to_those_about_another() -> None:
    """An answer to a similar turn may be told from the cache; of this one it is not asked."""
    sound, mark = Sound.of(bytes(4 * 16_000)), mark_of("a", "sound")
    body = {"messages": [user(f"{mark}\nWhat is said?")]}
    ask = CHAT.reader.read(json.dumps(body).encode(), lenient=False)
    hearing = msgspec.structs.replace(FAKE_INFO, sound_rate=16_000)
    options = msgspec.structs.replace(OPTIONS, compares_turns=True)
    asking = ModelContext(served(FakeEngine()).choose(None, None), hearing, Sender(), options)
    told = msgspec.structs.replace(ask, media=(TakenMedia(mark, sound, (MediaRows(3, 3),)),))
    (words,), (heard,) = resolve(ask, asking).prompts, resolve(told, asking).prompts
    assert words.turn is not None
    assert heard.turn is None
    assert (heard.num_rows(Sound), heard.sound_s) == (3, 1.0)


# -- sampling --------------------------------------------------------------------------------------------


def test_absent_fields_leave_the_distribution_as_it_is() -> None:
    (request,) = chat(seed=5).requests
    assert request.sampling == Sampling(seed=5)
    assert (request.stop, request.top_logprobs, request.prompt_logprobs) == ((), None, False)
    assert request.client == "peer:@"


def test_every_sampling_field_arrives() -> None:
    alike = {
        "seed": 5,
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "typical_p": 0.8,
        "repeat_penalty": 1.1,
        "repeat_last_n": 0,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "top_n_sigma": 1.5,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "min_tokens": 2,
        "ignore_eos": True,
    }
    (request,) = chat(
        **alike,
        logit_bias={"7": 100, "300": -100},
        dry_multiplier=0.8,
        dry_base=2,
        dry_allowed_length=3,
        dry_penalty_last_n=100,
        dry_sequence_breakers=["\n", "x"],
        stop_token_ids=[9, 10],
        bad_words=["ab", "c"],
        stop=["a", "b"],
        user="ann",
    ).requests
    assert request.sampling == Sampling(
        **alike,
        logit_bias={7: 100.0, 300: -100.0},
        dry=DryPenalty(multiplier=0.8, base=2.0, allowed_length=3, last_n=100, breakers=("\n", "x")),
        stop_tokens=(9, 10),
        bad_words=((99, 100), (101,)),
    )
    assert (request.stop, request.client) == (("a", "b"), "user:ann")


@pytest.mark.parametrize("sent", [{"prompt": "abcdef"}, {"prompt": [0, 99, 100, 101, 102, 103, 104]}])
def test_the_last_tokens_of_a_prompt_are_kept(sent: dict[str, object]) -> None:
    def kept(count: int) -> tuple[int, ...]:
        return complete(**sent, truncate_prompt_tokens=count).prompts[0].tokens

    assert (kept(3), kept(1), kept(7), kept(100)) == ((0, 103, 104), (104,), kept(100), kept(-1))
    assert len(kept(100)) == 7
    long = complete(prompt="x" * 9000, truncate_prompt_tokens=-1, max_tokens=6)
    assert len(long.prompts[0].tokens) == 4090
    said = [{"role": "user", "content": "x" * 9000}]
    assert len(chat(messages=said, truncate_prompt_tokens=50).prompts[0].tokens) == 50
    with pytest.raises(InvalidRequest):
        complete(**sent, truncate_prompt_tokens=0)


@pytest.mark.parametrize(
    ("names", "client"),
    [
        ({"safety_identifier": "bob", "prompt_cache_key": "any"}, "user:bob"),
        ({"user": "ann", "safety_identifier": "bob"}, "user:ann"),
    ],
)
def test_the_newer_names_of_user(names: dict[str, object], client: str) -> None:
    assert chat(**names).requests[0].client == client


@pytest.mark.parametrize(
    "off",
    [
        {"dry_multiplier": 0, "dry_base": 2},
        {"dry_base": 2, "dry_sequence_breakers": []},
        {"dry_multiplier": 1, "dry_penalty_last_n": 0},
        {"top_n_sigma": -1},
        {"top_k": 0},
        {"top_k": -1},
        {"xtc_probability": 0},
        {"min_tokens": 0, "stop_token_ids": []},
    ],
)
def test_samplers_can_be_off(off: dict[str, object]) -> None:
    assert chat(seed=5, **off).requests[0].sampling == Sampling(seed=5)


def test_dry_looks_at_all_tokens_unless_told_otherwise() -> None:
    for all_of_them in ({}, {"dry_penalty_last_n": -1}):
        (request,) = chat(dry_multiplier=1, **all_of_them).requests
        assert request.sampling.dry == DryPenalty(multiplier=1.0)


@pytest.mark.parametrize("seed", [0, -2, 2**63 - 1, -(10**40)])
def test_any_seed_is_a_seed_and_choices_count_on(seed: int) -> None:
    seeds = [request.sampling.seed for request in chat(seed=seed, n=3).requests]
    assert all(0 <= s < 2**63 for s in seeds)
    assert seeds == [(seed + i) % 2**63 for i in range(3)]


@pytest.mark.parametrize("none", [{}, {"seed": None}, {"seed": -1}])
def test_no_seed_is_another_one_every_time(none: dict[str, object]) -> None:
    assert chat(**none).requests[0].sampling.seed != chat(**none).requests[0].sampling.seed


# -- limits ----------------------------------------------------------------------------------------------


def test_absent_max_tokens_is_what_the_context_leaves() -> None:
    (request,) = chat().requests
    assert request.total_tokens == CONTEXT


def test_the_context_is_kept_to_the_last_token() -> None:
    prompt = list(range(2, 12)) * 10
    assert complete(prompt=prompt, max_tokens=CONTEXT - 100).requests[0].total_tokens == CONTEXT
    with pytest.raises(PromptTooLong, match=f"is {CONTEXT} tokens, but {CONTEXT + 1} were") as error:
        complete(prompt=prompt, max_tokens=CONTEXT - 99)
    assert error.value.param == "prompt"


def test_a_prompt_that_fills_the_context_leaves_nothing_to_generate() -> None:
    assert complete(prompt=[5] * (CONTEXT - 1)).requests[0].max_tokens == 1
    assert complete(prompt=[5] * CONTEXT, max_tokens=0).requests[0].max_tokens == 0
    with pytest.raises(PromptTooLong):
        complete(prompt=[5] * CONTEXT)


def test_best_of_needs_logprobs_that_nobody_sees() -> None:
    call = complete(best_of=3, n=2)
    assert [request.top_logprobs for request in call.requests] == [0, 0, 0]
    assert (call.shown_logprobs, call.n, call.best_of) == (None, 2, 3)
    assert complete(best_of=2, n=2, stream=True).requests[0].top_logprobs is None


@pytest.mark.parametrize(
    "names", [["max_tokens"], ["max_completion_tokens"], ["max_tokens", "max_completion_tokens"]]
)
def test_both_names_of_the_limit(names: list[str]) -> None:
    assert chat(**dict.fromkeys(names, 7)).requests[0].max_tokens == 7


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_are_asked_for(fields: dict[str, object], found: int | None) -> None:
    assert chat(**fields).requests[0].top_logprobs == found


def test_what_streams_and_lists_may_leave_out() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert chat(stop="###").requests[0].stop == ("###",)
    assert len(complete(prompt=["a"] * 128, n=8).requests) == OPTIONS.max_sequences


# -- priority --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "field", "tier", "expected"),
    [
        (None, None, None, Priority.INTERACTIVE),
        (None, None, "auto", Priority.INTERACTIVE),
        (None, None, "default", Priority.INTERACTIVE),
        (None, None, "flex", Priority.BATCH),
        (None, None, "priority", Priority.INTERACTIVE),
        (None, "interactive", "flex", Priority.INTERACTIVE),
        (None, "batch", "priority", Priority.BATCH),
        ("interactive", "batch", "flex", Priority.INTERACTIVE),
        ("batch", "interactive", "priority", Priority.BATCH),
    ],
)
def test_the_header_outranks_the_body(
    header: str | None, field: str | None, tier: str | None, expected: Priority
) -> None:
    assert Sender(priority_header=header).priority(field=field, tier=tier) == expected


@pytest.mark.parametrize("tier", [None, "auto", "default"])
def test_the_servers_default_comes_last(tier: str | None) -> None:
    sender = Sender(priority_header=None, default_priority=Priority.BATCH)
    assert sender.priority(field=None, tier=tier) == Priority.BATCH


def test_a_call_has_the_priority_of_all_its_requests() -> None:
    call = chat(sender=Sender(priority_header="batch"), n=2, service_tier="priority")
    assert (call.priority, call.service_tier) == (Priority.BATCH, "flex")
    assert {request.priority for request in call.requests} == {Priority.BATCH}


# -- the call --------------------------------------------------------------------------------------------


def test_the_model_is_the_served_one_or_an_alias() -> None:
    assert chat().model == "fake"
    assert chat(model="other").model == "other"
    with pytest.raises(ModelNotFound):
        chat(model="gpt-4o")


def test_ids_are_openais_and_never_the_same() -> None:
    ids = {chat().id, chat().id, complete().id}
    assert sorted(one.partition("-")[0] for one in ids) == ["chatcmpl", "chatcmpl", "cmpl"]


def test_the_fingerprint_follows_the_file() -> None:
    other = msgspec.structs.replace(FAKE_INFO, file_bytes=2)
    assert fingerprint(FAKE_INFO) == fingerprint(msgspec.structs.replace(FAKE_INFO)) != fingerprint(other)


# -- what is refused -------------------------------------------------------------------------------------

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(
            ({"logit_bias": {key: 1}}, "logit_bias")
            for key in ("x", "-1", "1.5", str(VOCAB_SIZE), "9" * 99, "²")
        ),
        ({"max_tokens": 7, "max_completion_tokens": 8}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [user("hi"), {"role": "assistant", "tool_calls": []}]}, "messages[1].content"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages[0].tool_call_id"),
        ({"messages": [{**user("x"), "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
        ({"messages": [{**user("x"), "tool_calls": CALLS}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "function", "content": "4"}]}, "messages[0].name"),
        ({"messages": [{**user("4"), "function_call": CALLS[0]["function"]}]}, "messages[0].function_call"),
    ],
)
def test_a_chat_is_refused_by_its_field(fields: dict[str, object], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 129, "n": 8}, "prompt"),
        ({"n": 9}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["x", ""], "tokenizer": FakeTokenizer(adds_bos=False)}, "prompt"),
        ({"prompt": [VOCAB_SIZE]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1], [10**30]]}, "prompt"),
        ({"suffix": "b"}, "suffix"),
        ({"suffix": "b", "echo": True, "tokenizer": FakeTokenizer(has_fim=True)}, "suffix"),
    ],
)
def test_a_completion_is_refused_by_its_field(fields: dict[str, object], param: str) -> None:
    assert refused(complete, **fields).param == param


@pytest.mark.parametrize(
    ("header", "field", "param"),
    [
        ("urgent", None, "X-Priority"),
        (None, "urgent", "priority"),
        ("batch", "urgent", "priority"),
        ("", None, "X-Priority"),
    ],
)
def test_unknown_priorities_are_refused(header: str | None, field: str | None, param: str) -> None:
    assert refused(Sender(priority_header=header).priority, field=field).param == param


# -- conversations ---------------------------------------------------------------------------------------


def test_a_conversation_is_rendered_and_begins_with_one_bos() -> None:
    """A last message of the assistant is continued."""
    (prompt,) = chat(messages=[user("hi")]).prompts
    assert prompt.tokens == (0, 300, *tokens_of("hi"), 301)
    (prompt,) = chat(messages=[user("hi"), {"role": "assistant", "content": "Sure, "}]).prompts
    assert prompt.tokens == (0, 300, *tokens_of("hi"), 301, *tokens_of("Sure, "))
    (prompt,) = chat(template="{{ bos_token }}{{ messages[0].content }}").prompts
    assert prompt.tokens == (0, *tokens_of("hi"))


def test_all_choices_know_where_other_prompts_part_from_theirs() -> None:
    """`<s><|system|>..`, which is no control token here, `<|user|>`, three letters, `<|assistant|>`."""
    messages = [{"role": "system", "content": "s"}, user("abc")]
    begun = len("<|system|>s") + 2
    asked = chat(messages=messages, n=2, info=STATEFUL_INFO)
    assert [request.borders for request in asked.requests] == [(begun, begun + 4)] * 2
    assert [request.borders for request in chat(messages=messages).requests] == [()]  # they begin anywhere
    raw = complete(prompt=["<|user|>abc<|assistant|>", "x"])
    assert [request.borders for request in raw.requests] == [(), ()]


def test_a_shortened_conversation_has_borders_of_its_own() -> None:
    turns = [user("x" * CONTEXT), {"role": "assistant", "content": "y"}]
    said = [AskedMessage(message) for message in [*turns, user("now")]]
    ask = CHAT.reader.read(json.dumps({"messages": [user("now")]}).encode(), lenient=False)
    forgetful = msgspec.structs.replace(ask, prompt=AskedConversation(said, "messages", may_forget=True))
    chosen = served(FakeEngine()).choose(None, None)
    call = resolve(forgetful, ModelContext(chosen, STATEFUL_INFO, Sender(), OPTIONS))
    (request,) = call.requests
    assert (request.tokens, request.borders) == ((0, 300, *tokens_of("now"), 301), (2, 6))


def test_text_parts_and_the_developer_are_understood() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (prompt,) = chat(
        messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]
    ).prompts
    text = FakeTokenizer().decode(list(prompt.tokens), special=True)
    assert text == "<s><|system|>a\nb<|user|>c<|assistant|>"


def test_a_template_that_raises_is_quoted() -> None:
    error = refused(template="{{ raise_exception('not today') }}")
    assert (error.param, error.code) == ("messages", "chat_template_failed")
    assert "not today" in str(error)


def test_a_template_for_tools_is_taken_where_there_are_any_or_by_name() -> None:
    named = {
        name: ServedTemplate(name, TOOL_FORMATS[form], None)
        for name, form in (("tool_use", "hermes"), ("rag", "demo"))
    }
    model = model_read_here(
        names=("fake",),
        engine=FakeEngine(),
        template=TEMPLATE,
        tool_format=TOOL_FORMATS["mistral"],
        named=named,
    )

    def form(**fields: object) -> str:
        call = resolved(CHAT, model, {"messages": [{"role": "user", "content": "hi"}], **fields}, Sender())
        return call.tool_calls.form.name if call.tool_calls else ""

    tools = [{"type": "function", "function": {"name": "f"}}]
    assert form(tools=tools) == "hermes"
    assert form(tools=tools, chat_template="rag") == "demo"
    assert form(tools=tools, chat_template="default") == "mistral"
    assert form() == ""
    with pytest.raises(InvalidRequest, match="'default', 'tool_use', 'rag'") as caught:
        form(chat_template="{{ messages }}")
    assert caught.value.param == "chat_template"


def test_no_template_is_no_chat() -> None:
    with pytest.raises(InvalidRequest, match="--chat-template"):
        chat(template=None)
    assert chat(template="").prompts[0].tokens == (0,)


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


# -- the last turn, and what is around it ----------------------------------------------------------------


def as_bytes(messages: Sequence[AskedMessage]) -> tuple[int, ...]:
    return tuple("|".join(f"{m.role}:{m.text}" for m in messages).encode())


def around(*messages: Mapping[str, object]) -> str:
    turn = last_turn([AskedMessage(fields) for fields in messages], as_bytes)
    assert turn is not None
    return bytes(turn.around).decode()


SYSTEM, DONE = {"role": "system", "content": "s"}, {"role": "tool", "content": "42", "tool_call_id": "1"}


def test_the_last_turn_is_blanked_and_nothing_else_is() -> None:
    assert around(SYSTEM, user("a"), user("b")) == "system:s|user:a|user:..."
    assert around(user("a"), DONE) == "user:...|tool:42"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turn = last_turn([AskedMessage(user(parts))], as_bytes)
    assert turn is not None
    assert turn.text == "a\nb"
    assert last_turn([AskedMessage(SYSTEM)], as_bytes) is None
