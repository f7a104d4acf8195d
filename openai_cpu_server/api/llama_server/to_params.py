from __future__ import annotations

import secrets

import msgspec

from openai_cpu_server.api.generation import to_params
from openai_cpu_server.api.generation.params import FileParam, GenerationParams, PromptsParam
from openai_cpu_server.api.generation.sampling import ignored_samplers, sampling_sent
from openai_cpu_server.api.llama_server import schema
from openai_cpu_server.http.parse import Ignored


def llama_completion_params(body: schema.LlamaCompletionBody) -> GenerationParams:
    return llama_server_params(body, PromptsParam(body.prompt, echo=True))


def llama_infill_params(body: schema.LlamaInfillBody) -> GenerationParams:
    files = [FileParam(file.filename or "tmp", file.text) for file in body.input_extra or ()]
    limit = body.limit
    prompt = PromptsParam(
        [(body.input_prefix, body.prompt or "")],
        "input_prefix",
        suffix=body.input_suffix,
        suffix_path="input_suffix",
        files=tuple(files),
        answer_room=256 if limit is None or limit.is_unlimited else limit.tokens,
        echo=True,
    )
    return llama_server_params(body, prompt)


def llama_server_params(body: schema.LlamaServerBody, prompt: PromptsParam) -> GenerationParams:
    biases = body.logit_bias
    ids = {} if biases is None else {str(token): amount for token, amount in biases.ids.items()}
    seed = None if body.seed == schema.ANY_SEED else body.seed
    completed = body.model_copy(update={"logit_bias": ids, "seed": seed})
    forms = list(to_params.shared_forms(body))
    if body.json_schema is not None:
        path = "json_schema"
        forms.append(
            to_params.schema_form(body.json_schema, path) if body.json_schema else to_params.any_object(path)
        )
    params = to_params.shared_params(
        completed, prompt, id_prefix="llama-", form=to_params.one_form(iter(forms))
    )
    values = params.sampling.values
    if not params.sampling.is_seeded:
        values = msgspec.structs.replace(values, seed=secrets.randbelow(schema.ANY_SEED))
    return msgspec.structs.replace(
        params,
        sampling=msgspec.structs.replace(
            params.sampling,
            values=values,
            sent=sampling_sent(body),
            defaults=schema.DEFAULTS,
            biases=() if biases is None else biases.texts,
        ),
        ignored=Ignored(ignored_samplers(body.samplers)),
        n=body.n_cmpl or body.n,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        max_tokens=body.limit,
        logprobs=body.n_probs or None,
        details=msgspec.structs.replace(
            to_params.details_param(body),
            tokens=bool(body.return_tokens),
            fields=tuple(body.response_fields or ()),
        ),
    )
