"""Default values of sampling and of the output limit, which each route sends to the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.sampling import with_samplers
from openai_cpu_server.api.ollama.schema import OllamaCreateBody
from openai_cpu_server.api.ollama.to_params import preset_of
from openai_cpu_server.contract.request import DryPenalty, GenerationRequest, Sampling
from openai_cpu_server.http.parse import parse
from openai_cpu_server.models.defaults import ModelDefaults
from openai_cpu_server.models.registry import Preset
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client, served
from tests.api.talking import MESSAGES
from tests.fakes import FAKE_INFO

pytestmark = pytest.mark.anyio
Json = dict[str, Any]

OWN = ModelDefaults(
    values={"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.1, "presence_penalty": 0.5},
    max_output_tokens=30,
)
NOTHING, BARE = ModelDefaults(), ModelDefaults(is_bare=True)
BODIES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
    "/v1/generate": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/api/chat": {"model": "fake", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "fake", "prompt": "hi", "stream": False},
}
OURS = [path for path in BODIES if path.startswith("/v1/")]
OLLAMA = ("/api/chat", "/api/generate")
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty")


async def engine_request(path: str, defaults: ModelDefaults, fields: Json) -> GenerationRequest:
    """Send the fields to a model with these defaults, and return the request that its engine gets."""
    engine = FakeEngine(text="Hi")
    models = served(engine)
    models.default.defaults = defaults
    models.derive("derived", Preset(base="fake", parameters={"temperature": 0.9, "top_k": 0}, max_tokens=7))
    async with client(create_api(models, OPTIONS).app) as http:
        answer = await http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    (request,) = engine.submitted
    return request


LAST_STEP = {
    **dict.fromkeys(OURS, (1.0, 1.0, None, 0.05, 1.0, 0.0)),
    **dict.fromkeys(OLLAMA, (0.8, 0.9, 40, 0.0, 1.0, 0.0)),
    "/completion": (0.8, 0.95, 40, 0.05, 1.0, 0.0),
}
"""Defaults of the routes, for values that neither a request nor its model sets."""
CHATS, OPENAIS = ("/v1/chat/completions", "/api/chat", "/completion"), OURS[:2]
BUT_ANTHROPICS = [path for path in BODIES if path != "/v1/messages"]
DERIVED = {**OWN.values, "temperature": 0.9, "top_k": None}
GREEDY = {"temperature": 0.0, "top_k": 20}
"""Penalties are off because they would change the output. Options that cut the distribution would not."""
CASES: list[tuple[Iterable[str], ModelDefaults, Json, Mapping[str, object]]] = [
    (BODIES, NOTHING, {}, {}),
    (OLLAMA, BARE, {}, {}),
    (OURS, BARE, {}, {"min_p": 0.0}),
    (BUT_ANTHROPICS, NOTHING, {"min_p": 0}, {"min_p": 0.0}),
    (BODIES, OWN, {}, OWN.values),
    (BODIES, OWN, {"temperature": 1.5, "top_k": 3}, {**OWN.values, "temperature": 1.5, "top_k": 3}),
    (BODIES, OWN, {"temperature": 0}, GREEDY),
    (BUT_ANTHROPICS, OWN, {"temperature": 0, "presence_penalty": 1}, {**GREEDY, "presence_penalty": 1.0}),
    (OPENAIS, OWN, {"repetition_penalty": 1.3}, {**OWN.values, "repeat_penalty": 1.3}),
    (CHATS, OWN, {"model": "derived"}, DERIVED),
    (CHATS, OWN, {"model": "derived", "temperature": 0.1}, {**DERIVED, "temperature": 0.1}),
    (OPENAIS, OWN, {"samplers": ["temperature"]}, {"temperature": 0.6, "min_p": 0.0}),
]


@pytest.mark.parametrize(
    ("path", "defaults", "fields", "values"),
    [(path, *case) for paths, *case in CASES for path in paths],
)
async def test_values_of_a_request_override_its_models_and_those_override_its_routes(
    path: str, defaults: ModelDefaults, fields: Json, values: Json
) -> None:
    if path in OLLAMA:
        options = {name: value for name, value in fields.items() if name != "model"}
        fields = {"model": fields.get("model", "fake"), "options": options}
    sampling = (await engine_request(path, defaults, fields)).sampling
    expected = {**dict(zip(FIELDS, LAST_STEP[path], strict=True)), **values}
    assert {name: getattr(sampling, name) for name in FIELDS} == expected


# -- the end of an answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BUT_ANTHROPICS)
async def test_an_answer_without_a_limit_has_the_models_limit(path: str) -> None:
    assert (await engine_request(path, OWN, {})).max_tokens == 30
    assert (await engine_request(path, NOTHING, {})).max_tokens > 3000


REST_OF_CONTEXT = (3000, FAKE_INFO.context_limit - 1)


@pytest.mark.parametrize(
    ("path", "fields", "bounds"),
    [
        ("/v1/chat/completions", {"max_tokens": 500}, (500, 500)),
        ("/v1/chat/completions", {"max_completion_tokens": 500}, (500, 500)),
        ("/v1/chat/completions", {"n_predict": 500}, (500, 500)),
        ("/v1/completions", {"max_tokens": 500}, (500, 500)),
        ("/v1/messages", {"max_tokens": 500}, (500, 500)),
        ("/v1/responses", {"max_output_tokens": 500}, (500, 500)),
        ("/v1/generate", {"max_tokens": 500}, (500, 500)),
        ("/completion", {"n_predict": 500}, (500, 500)),
        ("/api/chat", {"options": {"num_predict": 500}}, (500, 500)),
        ("/v1/chat/completions", {"n_predict": -1}, REST_OF_CONTEXT),
        ("/v1/completions", {"n_predict": -1}, REST_OF_CONTEXT),
        ("/completion", {"n_predict": -1}, REST_OF_CONTEXT),
        ("/api/generate", {"options": {"num_predict": -1}}, REST_OF_CONTEXT),
        ("/api/generate", {"options": {"num_predict": -2}}, REST_OF_CONTEXT),
    ],
)
async def test_a_requests_limit_overrides_the_models_and_may_be_the_rest_of_the_context(
    path: str, fields: Json, bounds: tuple[int, int]
) -> None:
    assert bounds[0] <= (await engine_request(path, OWN, fields)).max_tokens <= bounds[1]


async def test_a_conversation_that_can_be_shortened_leaves_room_for_an_unlimited_answer() -> None:
    long = [{"role": "user", "content": "x" * 1500}, {"role": "assistant", "content": "y" * 1500}] * 3
    messages = [*long, {"role": "user", "content": "z" * 100}]
    fields: Json = {"messages": messages, "options": {"num_predict": -1}}
    assert (await engine_request("/api/chat", OWN, fields)).max_tokens > 1000


def test_a_modelfile_may_switch_off_a_sampler_of_its_model() -> None:
    body = {"model": "mine", "from": "fake", "parameters": {"top_k": 0, "temperature": 0}}
    create, _ = parse(OllamaCreateBody, json.dumps(body).encode(), lenient=False)
    assert preset_of(create).parameters == {"top_k": 0, "temperature": 0}


def test_an_empty_list_of_samplers_switches_off_all_that_change_the_choice() -> None:
    whole = Sampling(
        seed=1,
        temperature=0.5,
        top_p=0.5,
        top_k=5,
        min_p=0.5,
        typical_p=0.5,
        repeat_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        top_n_sigma=1.0,
        xtc_probability=0.5,
        dry=DryPenalty(multiplier=1.0),
    )
    stay = {"seed", "repeat_last_n", "xtc_threshold", "logit_bias", "min_tokens", "stop_tokens", "scored"}
    stay |= {"ignore_eos", "bad_words"}
    neutral, fields = Sampling(seed=1), set(Sampling.__struct_fields__)
    assert {name for name in fields if getattr(whole, name) != getattr(neutral, name)} == fields - stay
    assert with_samplers(whole, ()) == neutral


@pytest.mark.parametrize("path", BODIES)
async def test_an_undeclared_sampling_field_does_not_reach_the_engine(path: str) -> None:
    """A lenient server passes over unknown fields, also over those that other families declare."""
    engine = FakeEngine(text="Hi")
    models = served(engine)
    models.default.defaults = OWN
    names = {*Sampling.__struct_fields__, *(f"dry_{name}" for name in DryPenalty.__struct_fields__)}
    names |= {"dry_penalty_last_n", "dry_sequence_breakers", "repetition_penalty", "stop_token_ids"}
    options = msgspec.structs.replace(OPTIONS, lenient=True)
    async with client(create_api(models, options).app) as http:
        await http.post(path, json=BODIES[path])
        for name in sorted(names):
            sent = {name: "x", "options": {name: "x"}} if path in OLLAMA else {name: "x"}
            answer = await http.post(path, json={**BODIES[path], **sent})
            assert answer.status_code in (200, 400), (name, answer.text)
    first, *others = (msgspec.structs.replace(request.sampling, seed=0) for request in engine.submitted)
    assert others.count(first) == len(others) > 0
