"""Bodies become requests: sampling, limits, priority, prompts, fan-out."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.api.asking.resolve import fingerprint
from openai_cpu_server.contract.request import Priority, Sampling
from openai_cpu_server.errors import InvalidRequest, ModelNotFound, PromptTooLong
from openai_cpu_server.http.context import Sender
from tests.api.resolving import CONTEXT, OPTIONS, chat, complete, param_of
from tests.fakes import FAKE_INFO, VOCAB_SIZE

# -- sampling --------------------------------------------------------------------------------------------


def test_absent_fields_leave_the_distribution_as_it_is() -> None:
    (request,) = chat(seed=5).requests
    assert request.sampling == Sampling(seed=5)
    assert (request.stop, request.top_logprobs, request.prompt_logprobs, request.client) == (
        (),
        None,
        False,
        "peer:@",
    )


def test_every_sampling_field_arrives() -> None:
    (request,) = chat(
        seed=5,
        temperature=0,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        typical_p=0.8,
        repeat_penalty=1.1,
        repeat_last_n=0,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": 100, "300": -100},
        ignore_eos=True,
        stop=["a", "b"],
        user="ann",
    ).requests
    assert request.sampling == Sampling(
        seed=5,
        temperature=0.0,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        typical_p=0.8,
        repeat_penalty=1.1,
        repeat_last_n=0,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={7: 100.0, 300: -100.0},
        ignore_eos=True,
    )
    assert (request.stop, request.client) == (("a", "b"), "user:ann")


def test_the_newer_names_of_user() -> None:
    (request,) = chat(safety_identifier="bob", prompt_cache_key="any").requests
    assert request.client == "user:bob"
    (request,) = chat(user="ann", safety_identifier="bob").requests
    assert request.client == "user:ann"


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_can_be_off(top_k: int) -> None:
    assert chat(top_k=top_k).requests[0].sampling.top_k is None


@pytest.mark.parametrize(
    "bias", [{"x": 1}, {"-1": 1}, {"1.5": 1}, {str(VOCAB_SIZE): 1}, {"9" * 99: 1}, {"²": 1}]
)
def test_logit_bias_is_keyed_by_token_ids(bias: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest) as error:
        chat(logit_bias=bias)
    assert param_of(error) == "logit_bias"


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(10**40)])
def test_any_seed_is_a_seed_and_choices_count_on(seed: int) -> None:
    seeds = [request.sampling.seed for request in chat(seed=seed, n=3).requests]
    assert all(0 <= s < 2**63 for s in seeds)
    assert seeds == [(seed + i) % 2**63 for i in range(3)]


def test_no_seed_is_another_one_every_time() -> None:
    assert chat().requests[0].sampling.seed != chat().requests[0].sampling.seed


# -- limits ----------------------------------------------------------------------------------------------


def test_absent_max_tokens_is_what_the_context_leaves() -> None:
    (request,) = chat().requests
    assert request.total_tokens == CONTEXT


@pytest.mark.parametrize("fields", [{"max_tokens": 7}, {"max_completion_tokens": 7}])
def test_both_names_of_the_limit(fields: dict[str, int]) -> None:
    assert chat(**fields).requests[0].max_tokens == 7


def test_two_equal_limits_are_one_and_two_different_ones_are_refused() -> None:
    assert chat(max_tokens=7, max_completion_tokens=7).requests[0].max_tokens == 7
    with pytest.raises(InvalidRequest) as error:
        chat(max_tokens=7, max_completion_tokens=8)
    assert param_of(error) == "max_tokens"


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


def test_a_chat_too_long_names_its_messages() -> None:
    with pytest.raises(PromptTooLong) as error:
        chat(messages=[{"role": "user", "content": "x" * CONTEXT}])
    assert error.value.param == "messages"


def test_prompts_times_choices_are_limited() -> None:
    assert len(complete(prompt=["a"] * 128, n=8).requests) == OPTIONS.max_sequences
    with pytest.raises(InvalidRequest) as error:
        complete(prompt=["a"] * 129, n=8)
    assert param_of(error) == "prompt"


@pytest.mark.parametrize("param", ["n", "best_of"])
def test_choices_are_limited(param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        complete(**{param: 9})
    assert param_of(error) == param


@pytest.mark.parametrize("fields", [{"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}])
def test_best_of_must_make_sense(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as error:
        complete(**fields)
    assert param_of(error) == "best_of"


def test_best_of_needs_logprobs_that_nobody_sees() -> None:
    call = complete(best_of=3, n=2)
    assert [request.top_logprobs for request in call.requests] == [0, 0, 0]
    assert (call.shown_logprobs, call.n, call.best_of) == (None, 2, 3)
    assert complete(best_of=2, n=2, stream=True).requests[0].top_logprobs is None


def test_stream_options_belong_to_streams() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    with pytest.raises(InvalidRequest) as error:
        chat(stream_options={"include_usage": True})
    assert param_of(error) == "stream_options"


def test_one_stop_string_needs_no_list() -> None:
    assert chat(stop="###").requests[0].stop == ("###",)


def test_top_logprobs_belong_to_logprobs() -> None:
    assert chat(logprobs=True).requests[0].top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).requests[0].top_logprobs == 20
    assert chat(logprobs=False).requests[0].top_logprobs is None
    for logprobs in (False, None):
        with pytest.raises(InvalidRequest) as error:
            chat(logprobs=logprobs, top_logprobs=0)
        assert param_of(error) == "top_logprobs"


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


def test_the_servers_default_comes_last() -> None:
    for tier in (None, "auto", "default"):
        assert (
            Sender(priority_header=None, default_priority=Priority.BATCH).priority(field=None, tier=tier)
            == Priority.BATCH
        )


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
    with pytest.raises(InvalidRequest) as error:
        Sender(priority_header=header).priority(field=field)
    assert param_of(error) == param


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
    first, second = chat(), chat()
    assert first.id.startswith("chatcmpl-")
    assert complete().id.startswith("cmpl-")
    assert first.id != second.id


def test_the_fingerprint_follows_the_file() -> None:
    other = msgspec.structs.replace(FAKE_INFO, file_bytes=2)
    assert fingerprint(FAKE_INFO) == fingerprint(msgspec.structs.replace(FAKE_INFO))
    assert fingerprint(FAKE_INFO) != fingerprint(other)
