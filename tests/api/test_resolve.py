"""Resolution of bodies: sampling, limits, priority, fan-out, conversations, prompts and refusals."""

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
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import InvalidRequest, PromptFarTooLong, PromptTooLong
from openai_cpu_server.http.context import Caller
from openai_cpu_server.models.served import ModelThinking, ServedTemplate
from openai_cpu_server.prompt.chat_prompts import whole_prompt
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import ReasoningFormat, template_reasoning
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
    """A copy would hold the interpreter's lock, and the event loop would wait for it."""
    body = json.dumps({"messages": [user([part])]}).encode()
    tracemalloc.start()
    try:
        CHAT.read(body, lenient=False)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1.5 * len(body)


def test_a_turn_with_a_sound_has_no_similar_turns() -> None:
    """The answer cache compares texts, and turns with different sounds may have the same text."""
    sound, mark = Sound.of(bytes(4 * 16_000)), mark_of(AttachmentKind.SOUND, "a")
    body = {"messages": [user(f"{mark}\nWhat is said?")]}
    params = CHAT.read(json.dumps(body).encode(), lenient=False)
    hearing = msgspec.structs.replace(FAKE_INFO, sound_rate=16_000)
    options = msgspec.structs.replace(OPTIONS, compares_turns=True)
    context = ResolveContext(served(FakeEngine()).choose(None, None), hearing, Caller(), options)
    with_sound = msgspec.structs.replace(params, media=(TakenMedia(mark, sound, (MediaEmbeddings(3, 3),)),))
    (text_prompt,), (sound_prompt,) = resolve(params, context).prompts, resolve(with_sound, context).prompts
    assert text_prompt.turn is not None
    assert sound_prompt.turn is None
    assert (sound_prompt.num_rows(Sound), sound_prompt.sound_s) == (3, 1.0)


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
    sampling = msgspec.structs.replace(params.sampling, biases=biases)
    values = for_model(sampling, tokenizer, vocab_size=tokenizer.vocab_size)
    assert (values.logit_bias, values.bad_words) == ({99: 1.0, 7: 2.0}, ((100,),))
    assert tokenizer.num_calls == 1
    tokenizer = _CountingTokenizer()
    tokens = whole_prompt(["first", 7, "a", "b", 8], tokenizer, most_tokens=None)
    with pytest.raises(PromptFarTooLong):
        whole_prompt(["a", 7, "b", 8], tokenizer, most_tokens=1)
    assert tokens == (0, *(byte + 2 for byte in b"first"), 7, 99, 100, 8)
    assert tokenizer.num_calls == 1


# -- limits ----------------------------------------------------------------------------------------------


def test_the_context_may_be_used_to_the_last_token() -> None:
    assert chat().requests[0].total_tokens == CONTEXT
    assert complete(prompt=[5] * 100, max_tokens=CONTEXT - 100).requests[0].total_tokens == CONTEXT
    assert complete(prompt=[5] * (CONTEXT - 1)).requests[0].max_tokens == 1
    assert complete(prompt=[5] * CONTEXT, max_tokens=0).requests[0].max_tokens == 0
    with pytest.raises(PromptTooLong):
        complete(prompt=[5] * CONTEXT)
    with pytest.raises(PromptTooLong, match=f"is {CONTEXT} tokens, but {CONTEXT + 1} were") as error:
        complete(prompt=[5] * 100, max_tokens=CONTEXT - 99)
    assert error.value.param == "prompt"


def test_a_call_may_have_the_largest_number_of_sequences() -> None:
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
def test_priorities(header: str | None, field: str | None, tier: str | None, expected: Priority) -> None:
    assert Caller(priority_header=header).priority(field=field, tier=tier) == expected
    if header is field is None and tier in (None, "auto", "default"):
        assert Caller(default_priority=Priority.BATCH).priority(field=None, tier=tier) == Priority.BATCH


def test_a_call_has_the_priority_of_all_its_requests() -> None:
    call = chat(caller=Caller(priority_header="batch"), n=2, service_tier="priority")
    assert (call.priority, call.service_tier) == (Priority.BATCH, "flex")
    assert {request.priority for request in call.requests} == {Priority.BATCH}


# -- the call --------------------------------------------------------------------------------------------


def test_ids_are_openais_and_never_the_same() -> None:
    ids = {chat().id, chat().id, complete().id}
    assert sorted(call_id.partition("-")[0] for call_id in ids) == ["chatcmpl", "chatcmpl", "cmpl"]
    call = complete(prompt=["a", "b"], n=2)
    numbered = [(f"{call.id}/{number}", (0, *tokens_of("aabb"[number]))) for number in range(4)]
    assert [(request.id, request.tokens) for request in call.requests] == numbered


@pytest.mark.parametrize("none", [{}, {"seed": None}, {"seed": -1}])
def test_each_call_without_a_seed_has_its_own(none: dict[str, object]) -> None:
    assert chat(**none).requests[0].sampling.seed != chat(**none).requests[0].sampling.seed


def test_the_fingerprint_follows_the_file() -> None:
    other = msgspec.structs.replace(FAKE_INFO, file_bytes=2)
    assert fingerprint(FAKE_INFO) == fingerprint(msgspec.structs.replace(FAKE_INFO)) != fingerprint(other)


# -- refusals --------------------------------------------------------------------------------------------


def test_an_empty_prompt_without_a_bos_token_is_refused() -> None:
    assert refused(complete, prompt=["x", ""], tokenizer=FakeTokenizer(adds_bos=False)).param == "prompt"


# -- conversations ---------------------------------------------------------------------------------------


def test_a_shortened_conversation_has_boundaries_of_its_own() -> None:
    turns = [user("x" * CONTEXT), {"role": "assistant", "content": "y"}]
    messages = [MessageParam(message) for message in [*turns, user("now")]]
    params = CHAT.read(json.dumps({"messages": [user("now")]}).encode(), lenient=False)
    short = msgspec.structs.replace(params, prompt=ConversationParam(messages, "messages", may_forget=True))
    chosen = served(FakeEngine()).choose(None, None)
    call = resolve(short, ResolveContext(chosen, STATEFUL_INFO, Caller(), OPTIONS))
    (request,) = call.requests
    assert (request.tokens, request.boundaries) == ((0, 300, *tokens_of("now"), 301), (2, 6))


def test_a_template_is_selected_by_tools_or_by_name() -> None:
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


def test_marks_of_thoughts_that_are_control_tokens_are_shown_to_the_reader() -> None:
    calls = ReasoningFormat("calls", "<|user|>", "<|tool_call|>", signs=())
    reasoning = template_reasoning(ChatTemplate("a", bos_text="", eos_text=""), calls)
    assert reasoning is not None
    call = chat(template="a", thinking=ModelThinking(reasoning))
    assert call.requests[0].show_control_tokens


# -- the last turn and its surroundings ------------------------------------------------------------------


def as_bytes(messages: Sequence[MessageParam]) -> tuple[int, ...]:
    return tuple("|".join(f"{m.role}:{m.text}" for m in messages).encode())


def around(*messages: Mapping[str, object]) -> str:
    turn = last_turn([MessageParam(fields) for fields in messages], as_bytes)
    assert turn is not None
    return bytes(turn.around).decode()


SYSTEM, DONE = {"role": "system", "content": "s"}, {"role": "tool", "content": "42", "tool_call_id": "1"}


def test_only_the_last_turn_is_blanked() -> None:
    assert around(SYSTEM, user("a"), user("b")) == "system:s|user:a|user:..."
    assert around(user("a"), DONE) == "user:...|tool:42"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turn = last_turn([MessageParam(user(parts))], as_bytes)
    assert turn is not None
    assert turn.text == "a\nb"
    assert last_turn([MessageParam(SYSTEM)], as_bytes) is None
