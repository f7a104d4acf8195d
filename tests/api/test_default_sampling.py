"""Values that requests leave out: what each route sends to the engine, and where clients see it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.sampling import with_samplers
from openai_cpu_server.api.ollama.schema import OllamaCreateBody
from openai_cpu_server.api.ollama.to_params import preset_of
from openai_cpu_server.contract.request import DryPenalty, Sampling
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


def asking(engine: FakeEngine, defaults: ModelDefaults) -> httpx.AsyncClient:
    models = served(engine)
    models.default.defaults = defaults
    models.derive("derived", Preset(base="fake", parameters={"temperature": 0.9, "top_k": 0}, max_tokens=7))
    return client(create_api(models, OPTIONS).app)


async def sampled(path: str, defaults: ModelDefaults, **fields: object) -> tuple[object, ...]:
    engine = FakeEngine(text="Hi")
    if path in OLLAMA:
        model = fields.pop("model", "fake")
        fields = {"model": model, "options": fields}
    async with asking(engine, defaults) as http:
        answer = await http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    (request,) = engine.submitted
    return tuple(getattr(request.sampling, name) for name in FIELDS)


LAST_STEP = {
    **dict.fromkeys(OURS, (1.0, 1.0, None, 0.05, 1.0, 0.0)),
    **dict.fromkeys(OLLAMA, (0.8, 0.9, 40, 0.0, 1.0, 0.0)),
    "/completion": (0.8, 0.95, 40, 0.05, 1.0, 0.0),
}
"""Values that neither a request nor its model has."""
CHATS, OPENAIS = ("/v1/chat/completions", "/api/chat", "/completion"), OURS[:2]
BUT_ANTHROPICS = [path for path in BODIES if path != "/v1/messages"]
DERIVED = {**OWN.values, "temperature": 0.9, "top_k": None}
GREEDY = {"temperature": 0.0, "top_k": 20}
"""Penalties would change the output; what cuts the distribution has no effect."""
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
    ("path", "defaults", "fields", "known"),
    [(path, *case) for paths, *case in CASES for path in paths],
)
async def test_a_requests_values_stand_above_its_models_and_those_above_its_familys(
    path: str, defaults: ModelDefaults, fields: Json, known: Json
) -> None:
    expected = {**dict(zip(FIELDS, LAST_STEP[path], strict=True)), **known}
    assert await sampled(path, defaults, **fields) == tuple(expected.values())


# -- the end of an answer ----------------------------------------------------------------------------------


async def limit_of(path: str, defaults: ModelDefaults, **fields: object) -> int:
    engine = FakeEngine(text="Hi")
    async with asking(engine, defaults) as http:
        answer = await http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    (request,) = engine.submitted
    return request.max_tokens


@pytest.mark.parametrize("path", BUT_ANTHROPICS)
async def test_an_answer_without_a_limit_has_the_models(path: str) -> None:
    assert await limit_of(path, OWN) == 30
    assert await limit_of(path, NOTHING) > 3000


REST = (3000, FAKE_INFO.context_limit - 1)


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
        ("/v1/chat/completions", {"n_predict": -1}, REST),
        ("/v1/completions", {"n_predict": -1}, REST),
        ("/completion", {"n_predict": -1}, REST),
        ("/api/generate", {"options": {"num_predict": -1}}, REST),
        ("/api/generate", {"options": {"num_predict": -2}}, REST),
    ],
)
async def test_a_requests_own_limit_wins_and_may_be_the_rest_of_the_context(
    path: str, fields: Json, bounds: tuple[int, int]
) -> None:
    assert bounds[0] <= await limit_of(path, OWN, **fields) <= bounds[1]


async def test_a_conversation_that_may_forget_leaves_room_for_an_answer_of_any_length() -> None:
    long = [{"role": "user", "content": "x" * 1500}, {"role": "assistant", "content": "y" * 1500}] * 3
    messages = [*long, {"role": "user", "content": "z" * 100}]
    fields: Json = {"messages": messages, "options": {"num_predict": -1}}
    assert await limit_of("/api/chat", OWN, **fields) > 1000


# -- where clients see it ----------------------------------------------------------------------------------


def test_a_modelfile_may_switch_a_sampler_of_the_model_off() -> None:
    body = {"model": "mine", "from": "fake", "parameters": {"top_k": 0, "temperature": 0}}
    create, _ = parse(OllamaCreateBody, json.dumps(body).encode(), lenient=False)
    assert preset_of(create).parameters == {"top_k": 0, "temperature": 0}


def test_without_samplers_all_that_shapes_the_choice_is_off() -> None:
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
