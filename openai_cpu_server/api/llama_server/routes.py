"""Routes of llama-server's own API, and conversion of bodies to a `GenerationParams`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from openai_cpu_server.api.generation.params import (
    FileParam,
    FormParam,
    GenerationParams,
    LimitParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.route import ApiAdapter, BodyReader, GenerationRoute
from openai_cpu_server.api.generation.sampling import left_out, sampling_sent, with_samplers
from openai_cpu_server.api.generation.to_params import (
    any_object,
    details_param,
    one_form,
    schema_form,
    shared_forms,
    shared_params,
)
from openai_cpu_server.api.llama_server.body import (
    ANY_SEED,
    DEFAULTS,
    LlamaCompletionBody,
    LlamaInfillBody,
    LlamaServerBody,
)
from openai_cpu_server.api.llama_server.render import LlamaCompletion, LlamaRenderer
from openai_cpu_server.api.llama_server.server import HealthWord, LlamaServerFacts, Props, Slot
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.http.errors import NumberedErrorObject, numbered_at
from openai_cpu_server.http.keys import CALLS, INFERENCE, PROBES
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.http.routes import GENERATION_ERRORS, ApiRoute, ApiRouter, JsonSchema

_NO_NAME = "tmp"
"""llama-server's name of a file without one."""
_ANSWER_ROOM = 256


def completion_params(body: LlamaCompletionBody) -> GenerationParams:
    """Convert a body. Raises InvalidRequest."""
    return llama_ask(body, PromptsParam(body.prompt, echo=True))


def infill_ask(body: LlamaInfillBody) -> GenerationParams:
    """Convert a body. Raises InvalidRequest."""
    files = [FileParam(file.filename or _NO_NAME, file.text) for file in body.input_extra or ()]
    limit = body.limit
    prompt = PromptsParam(
        [(body.input_prefix, body.prompt or "")],
        "input_prefix",
        suffix=body.input_suffix,
        suffix_path="input_suffix",
        files=tuple(files),
        answer_room=_ANSWER_ROOM if limit is None else limit[1],
        echo=True,
    )
    return llama_ask(body, prompt)


def llama_ask(body: LlamaServerBody, prompt: PromptsParam) -> GenerationParams:
    """Convert the shared fields. Raises InvalidRequest."""
    given = {name: number for name, number in DEFAULTS.items() if getattr(body, name) is None}
    biases = body.logit_bias
    ids = {} if biases is None else {str(token): amount for token, amount in biases.ids.items()}
    seed = None if body.seed == ANY_SEED else body.seed
    told = body.model_copy(update={**given, "logit_bias": ids, "seed": seed})
    ask = shared_params(told, prompt, id_prefix="llama-", form=one_form(_forms(body)))
    sampling = with_samplers(ask.sampling, body.samplers)
    if not ask.is_seeded:
        sampling = msgspec.structs.replace(sampling, seed=secrets.randbelow(ANY_SEED))
    limit = body.limit
    return msgspec.structs.replace(
        ask,
        sampling=sampling,
        sent=sampling_sent(body),
        ignored=Ignored(left_out(body.samplers)),
        biases=() if biases is None else biases.texts,
        n=body.n_cmpl or body.n,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        max_tokens=None if limit is None else LimitParam(limit[1], limit[0], is_ceiling=True),
        logprobs=body.n_probs or None,
        details=msgspec.structs.replace(
            details_param(body),
            tokens=bool(body.return_tokens),
            fields=tuple(body.response_fields or ()),
        ),
    )


def _forms(body: LlamaServerBody) -> Iterator[FormParam]:
    yield from shared_forms(body)
    if body.json_schema is not None:
        yield schema_form(body.json_schema, "json_schema") if body.json_schema else any_object("json_schema")


_RENDERER = LlamaRenderer()
_COMPLETION = ApiAdapter(BodyReader(LlamaCompletionBody, completion_params), _RENDERER)
_INFILL = ApiAdapter(BodyReader(LlamaInfillBody, infill_ask), _RENDERER)


class LlamaServerRoutes:
    def __init__(self, parts: AppState) -> None:
        self.completion = GenerationRoute(_COMPLETION, parts.generation, parts.options)
        self.infill = GenerationRoute(_INFILL, parts.generation, parts.options)
        self.facts = LlamaServerFacts(parts.models)


_STREAM = "With `stream`: `data: ` and a chunk as JSON, an empty line, and so on; the last one has `stop`."
_generation = partial(
    ApiRoute[LlamaServerRoutes],
    "POST",
    access=CALLS,
    tag="llama-server",
    error=NumberedErrorObject,
    answer=LlamaCompletion,
    lists=(False, True),
    streams=True,
    stream_form=_STREAM,
    errors=GENERATION_ERRORS,
)
_COMPLETION_ROW = _generation(
    "/completion",
    lambda at: at.completion.create,
    summary="Continue a text, or each of several, as llama-server does",
    body=LlamaCompletionBody,
)
_MODEL: Mapping[str, JsonSchema] = {"model": {"type": "string"}}
_fact = partial(
    ApiRoute[LlamaServerRoutes], "GET", tag="llama-server", errors=(404, 503), error=NumberedErrorObject
)
_rows = (
    _COMPLETION_ROW,
    _COMPLETION_ROW.at("/completions"),
    _generation(
        "/infill",
        lambda at: at.infill.create,
        summary="What stands between two texts, for models with tokens for that",
        body=LlamaInfillBody,
    ),
    _fact(
        "/props",
        lambda at: at.facts.props,
        access=INFERENCE,
        summary="What a model is, and what is taken where nothing is sent",
        query=_MODEL,
        answer=Props,
    ),
    _fact(
        "/slots",
        lambda at: at.facts.slots,
        access=INFERENCE,
        summary="A list of the places that sequences may have, and which are taken",
        query={**_MODEL, "fail_on_no_slot": {"type": "string"}},
        answer=Slot,
        lists=(True,),
    ),
    _fact(
        "/v1/health", lambda at: at.facts.health, access=PROBES, summary="It can generate", answer=HealthWord
    ),
)
ROOM = ApiRouter[AppState, LlamaServerRoutes](
    LlamaServerRoutes,
    _rows,
    shape=numbered_at("/completion", "/completions", "/infill", "/props", "/slots", "/v1/health"),
)
