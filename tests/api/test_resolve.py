"""Bodies become requests: sampling, limits, priority, fan-out, conversations and prompts; what is refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.generation.call import ResolveContext, fingerprint
from openai_cpu_server.api.generation.params import (
    AttachmentKind,
    ConversationParam,
    LogitBiasParam,
    MessageParam,
    TakenMedia,
    mark_of,
)
from openai_cpu_server.api.generation.resolve import last_turn, resolve
from openai_cpu_server.api.generation.sampling import for_model
from openai_cpu_server.contract.media import MediaEmbeddings, Sound
from openai_cpu_server.contract.request import DryPenalty, Priority, Sampling
from openai_cpu_server.errors import InvalidRequest, ModelNotFound, PromptFarTooLong, PromptTooLong
from openai_cpu_server.http.context import Caller
from openai_cpu_server.models.served import ServedTemplate
from openai_cpu_server.prompt.chat_prompts import whole_prompt
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.calls import tokens_of
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.resolving import CONTEXT, OPTIONS, chat, complete, refused, resolved
from tests.api.serving import TEMPLATE, served
from tests.fakes import FAKE_INFO, STATEFUL_INFO
from tests.reading import model_read_here


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


LARGE = "QUJD" * 2**20


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": LARGE, "format": "wav"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LARGE}"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{LARGE}"}},
    ],
    ids=lambda part: part["type"],
)
def test_a_large_attachment_is_read_without_further_copies(part: dict[str, object]) -> None:
    """Each copy would hold the interpreter's lock, for which the event loop waits."""
    body = json.dumps({"messages": [user([part])]}).encode()
    tracemalloc.start()
    try:
        CHAT.read(body, lenient=False)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1.5 * len(body)


def test_words_about_a_sound_are_not_alike_to_those_about_another() -> None:
    """An answer to a similar turn may be told from the cache; of this one it is not asked."""
    sound, mark = Sound.of(bytes(4 * 16_000)), mark_of(AttachmentKind.SOUND, "a")
    body = {"messages": [user(f"{mark}\nWhat is said?")]}
    ask = CHAT.read(json.dumps(body).encode(), lenient=False)
    hearing = msgspec.structs.replace(FAKE_INFO, sound_rate=16_000)
    options = msgspec.structs.replace(OPTIONS, compares_turns=True)
    asking = ResolveContext(served(FakeEngine()).choose(None, None), hearing, Caller(), options)
    told = msgspec.structs.replace(ask, media=(TakenMedia(mark, sound, (MediaEmbeddings(3, 3),)),))
    (words,), (heard,) = resolve(ask, asking).prompts, resolve(told, asking).prompts
    assert words.turn is not None
    assert heard.turn is None
    assert (heard.num_rows(Sound), heard.sound_s) == (3, 1.0)


class _CountingTokenizer(FakeTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        self.num_calls += 1
        return super().encode_all(texts, add_special=add_special, parse_special=parse_special)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert self.num_calls or text == "first", "each text would wait for a reader"
        return super().encode(text, add_special=add_special, parse_special=parse_special)


def test_many_texts_of_a_request_are_one_piece_of_work() -> None:
    params = CHAT.read(json.dumps({"messages": [user("a")]}).encode(), lenient=False)
    tokenizer = _CountingTokenizer()
    biases = (LogitBiasParam("a", 1.0), LogitBiasParam(7, 2.0), LogitBiasParam("b", None))
    sampling = for_model(
        msgspec.structs.replace(params, biases=biases), tokenizer, vocab_size=tokenizer.vocab_size
    )
    assert (sampling.logit_bias, sampling.bad_words) == ({99: 1.0, 7: 2.0}, ((100,),))
    assert tokenizer.num_calls == 1
    tokenizer = _CountingTokenizer()
    tokens = whole_prompt(["first", 7, "a", "b", 8], tokenizer, most_tokens=None)
    with pytest.raises(PromptFarTooLong):
        whole_prompt(["a", 7, "b", 8], tokenizer, most_tokens=1)
    assert tokens == (0, *(byte + 2 for byte in b"first"), 7, 99, 100, 8)
    assert tokenizer.num_calls == 1


# -- sampling --------------------------------------------------------------------------------------------


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


SEEDED, DRY = Sampling(seed=5), DryPenalty(multiplier=1.0)
SAMPLINGS: list[tuple[dict[str, object], Sampling]] = [
    ({}, SEEDED),
    ({"dry_multiplier": 0, "dry_base": 2}, SEEDED),
    ({"dry_base": 2, "dry_sequence_breakers": []}, SEEDED),
    ({"dry_multiplier": 1, "dry_penalty_last_n": 0}, SEEDED),
    ({"top_n_sigma": -1}, SEEDED),
    ({"top_k": 0}, SEEDED),
    ({"top_k": -1}, SEEDED),
    ({"xtc_probability": 0}, SEEDED),
    ({"min_tokens": 0, "stop_token_ids": []}, SEEDED),
    ({"temperature": 1e-40}, Sampling(seed=5, temperature=0.0)),  # float32 cannot hold it
    ({"temperature": 9e-6}, Sampling(seed=5, temperature=0.0)),
    ({"temperature": 1e-5}, Sampling(seed=5, temperature=1e-5)),
    ({"top_p": 1e-40}, Sampling(seed=5, top_p=0.0)),
    ({"min_p": 1e-40}, SEEDED),
    ({"typical_p": 1e-40}, Sampling(seed=5, typical_p=0.001)),
    ({"presence_penalty": -1e-40}, SEEDED),
    ({"frequency_penalty": 1e-320}, SEEDED),
    ({"dry_multiplier": 1}, Sampling(seed=5, dry=DRY)),
    ({"dry_multiplier": 1, "dry_penalty_last_n": -1}, Sampling(seed=5, dry=DRY)),
]


@pytest.mark.parametrize(("fields", "sampling"), SAMPLINGS)
def test_samplers_are_off_unless_they_change_something(fields: dict[str, object], sampling: Sampling) -> None:
    assert chat(seed=5, **fields).requests[0].sampling == sampling


@pytest.mark.parametrize("seed", [0, -2, 2**63 - 1, -(10**40)])
def test_any_seed_is_a_seed_and_choices_count_on(seed: int) -> None:
    seeds = [request.sampling.seed for request in chat(seed=seed, n=3).requests]
    assert all(0 <= s < 2**63 for s in seeds)
    assert seeds == [(seed + i) % 2**63 for i in range(3)]
    assert [r.sampling.seed for r in complete(prompt=["a", "b"], n=2, seed=9).requests] == [9, 10, 9, 10]
    for none in ({}, {"seed": None}, {"seed": -1}):
        assert chat(**none).requests[0].sampling.seed != chat(**none).requests[0].sampling.seed


# -- limits ----------------------------------------------------------------------------------------------


def test_the_context_is_kept_to_the_last_token() -> None:
    assert chat().requests[0].total_tokens == CONTEXT
    assert complete(prompt=[5] * 100, max_tokens=CONTEXT - 100).requests[0].total_tokens == CONTEXT
    assert complete(prompt=[5] * (CONTEXT - 1)).requests[0].max_tokens == 1
    assert complete(prompt=[5] * CONTEXT, max_tokens=0).requests[0].max_tokens == 0
    with pytest.raises(PromptTooLong):
        complete(prompt=[5] * CONTEXT)
    with pytest.raises(PromptTooLong, match=f"is {CONTEXT} tokens, but {CONTEXT + 1} were") as error:
        complete(prompt=[5] * 100, max_tokens=CONTEXT - 99)
    assert error.value.param == "prompt"


def test_a_prompt_that_is_too_long_is_refused_before_its_grammar_is_made() -> None:
    unmakeable = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strange"}}}
    with pytest.raises(InvalidRequest, match="unknown 'type'"):
        chat(response_format=unmakeable)
    with pytest.raises(PromptTooLong):
        chat(response_format=unmakeable, messages=[user("word " * 2 * CONTEXT)])


FIELDS: list[tuple[dict[str, object], str, object]] = [
    ({}, "client", "peer:@"),
    ({}, "stop", ()),
    ({}, "prompt_logprobs", False),
    ({}, "top_logprobs", None),
    ({"logprobs": False}, "top_logprobs", None),
    ({"logprobs": True}, "top_logprobs", 0),
    ({"logprobs": True, "top_logprobs": 20}, "top_logprobs", 20),
    ({"stop": "###"}, "stop", ("###",)),
    ({"max_tokens": 7}, "max_tokens", 7),
    ({"max_completion_tokens": 7}, "max_tokens", 7),
    ({"max_tokens": 7, "max_completion_tokens": 7}, "max_tokens", 7),
    ({"safety_identifier": "bob", "prompt_cache_key": "any"}, "client", "user:bob"),
    ({"user": "ann", "safety_identifier": "bob"}, "client", "user:ann"),
]


@pytest.mark.parametrize(("fields", "name", "value"), FIELDS)
def test_fields_have_several_names_and_forms(fields: dict[str, object], name: str, value: object) -> None:
    assert getattr(chat(**fields).requests[0], name) == value


def test_a_call_may_have_so_many_sequences() -> None:
    assert len(complete(prompt=["a"] * 128, n=8).requests) == OPTIONS.max_sequences


def test_usage_comes_at_the_end_of_a_stream_where_that_is_asked_for() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage


def test_best_of_needs_logprobs_that_nobody_sees() -> None:
    call = complete(best_of=3, n=2)
    assert [request.top_logprobs for request in call.requests] == [0, 0, 0]
    assert (call.shown_logprobs, call.n, call.best_of) == (None, 2, 3)
    assert complete(best_of=2, n=2, stream=True).requests[0].top_logprobs is None


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
def test_priorities(header: str | None, field: str | None, tier: str | None, expected: Priority) -> None:
    assert Caller(priority_header=header).priority(field=field, tier=tier) == expected
    if header is field is None and tier in (None, "auto", "default"):
        assert Caller(default_priority=Priority.BATCH).priority(field=None, tier=tier) == Priority.BATCH


def test_a_call_has_the_priority_of_all_its_requests() -> None:
    call = chat(caller=Caller(priority_header="batch"), n=2, service_tier="priority")
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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["x", ""], "tokenizer": FakeTokenizer(adds_bos=False)}, "prompt"),
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
    assert refused(Caller(priority_header=header).priority, field=field).param == param


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
    assert [request.boundaries for request in asked.requests] == [(begun, begun + 4)] * 2
    assert [request.boundaries for request in chat(messages=messages).requests] == [()]  # they begin anywhere
    raw = complete(prompt=["<|user|>abc<|assistant|>", "x"])
    assert [request.boundaries for request in raw.requests] == [(), ()]


def test_a_shortened_conversation_has_boundaries_of_its_own() -> None:
    turns = [user("x" * CONTEXT), {"role": "assistant", "content": "y"}]
    said = [MessageParam(message) for message in [*turns, user("now")]]
    ask = CHAT.read(json.dumps({"messages": [user("now")]}).encode(), lenient=False)
    forgetful = msgspec.structs.replace(ask, prompt=ConversationParam(said, "messages", may_forget=True))
    chosen = served(FakeEngine()).choose(None, None)
    call = resolve(forgetful, ResolveContext(chosen, STATEFUL_INFO, Caller(), OPTIONS))
    (request,) = call.requests
    assert (request.tokens, request.boundaries) == ((0, 300, *tokens_of("now"), 301), (2, 6))


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
        call = resolved(CHAT, model, {"messages": [{"role": "user", "content": "hi"}], **fields}, Caller())
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


def as_bytes(messages: Sequence[MessageParam]) -> tuple[int, ...]:
    return tuple("|".join(f"{m.role}:{m.text}" for m in messages).encode())


def around(*messages: Mapping[str, object]) -> str:
    turn = last_turn([MessageParam(fields) for fields in messages], as_bytes)
    assert turn is not None
    return bytes(turn.around).decode()


SYSTEM, DONE = {"role": "system", "content": "s"}, {"role": "tool", "content": "42", "tool_call_id": "1"}


def test_the_last_turn_is_blanked_and_nothing_else_is() -> None:
    assert around(SYSTEM, user("a"), user("b")) == "system:s|user:a|user:..."
    assert around(user("a"), DONE) == "user:...|tool:42"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turn = last_turn([MessageParam(user(parts))], as_bytes)
    assert turn is not None
    assert turn.text == "a\nb"
    assert last_turn([MessageParam(SYSTEM)], as_bytes) is None
