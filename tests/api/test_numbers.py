"""Every number of a body has bounds that native code can hold, the same in all families."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

import msgspec
import pytest

from openai_cpu_server.api.admin.adapters import AdapterBody
from openai_cpu_server.api.admin.tokens import TokenizeBody
from openai_cpu_server.api.chat.schema import ChatBody
from openai_cpu_server.api.completions.routes import CompletionBody
from openai_cpu_server.api.files.schema import BatchBody
from openai_cpu_server.api.generate.schema import GenerateBatchBody, GenerateBody
from openai_cpu_server.api.messages.schema import CountBody, MessagesBody
from openai_cpu_server.api.pooling.schema import EmbeddingBody, RerankBody
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.contract.request import DryPenalty, GenerationRequest, Sampling
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.parse import Body, parse

MESSAGES = [{"role": "user", "content": "hi"}]
FAMILIES: dict[type[Body], dict[str, object]] = {
    ChatBody: {"messages": MESSAGES},
    CompletionBody: {"prompt": "hi"},
    ResponsesBody: {"input": "hi"},
    MessagesBody: {"messages": MESSAGES, "max_tokens": 4},
    GenerateBody: {"prompt": "hi"},
    GenerateBatchBody: {"prompts": ["hi"]},
    EmbeddingBody: {"input": "hi"},
    RerankBody: {"query": "hi", "documents": ["hi"]},
}
NOT_NUMBERS = ["1e400", "-1e400", "1" + "0" * 400, "-1" + "0" * 400, "NaN", "Infinity", '"1"', "true", "[]"]
HUGE = [str(2**31), str(2**32), str(2**63), str(2**64), "9" * 4000]
"""Integers that do not fit into an int32."""
FLOATS = {
    "temperature": (["0", "5e-324", "1e-40", "1e-5", "2"], ["-5e-324", "-1", "2.0000001", "1e39"]),
    "top_p": (["0", "5e-324", "1e-40", "1"], ["-5e-324", "1.0000001", "1e39"]),
    "min_p": (["0", "5e-324", "1e-40", "1"], ["-5e-324", "1.0000001", "1e39"]),
    "typical_p": (["5e-324", "1e-40", "0.5", "1"], ["0", "-5e-324", "1.0000001", "1e39"]),
    "repeat_penalty": (
        ["0.01", "1", "100"],
        ["0", "-1", "5e-324", "1e-300", "1e-45", "1e-40", "1e-37", "0.0099", "100.001", "1e39", "1e300"],
    ),
    "presence_penalty": (["-2", "0", "5e-324", "2"], ["-2.0001", "2.0001", "1e39", "-1e300"]),
    "frequency_penalty": (["-2", "0", "5e-324", "2"], ["-2.0001", "2.0001", "1e39", "-1e300"]),
    "top_n_sigma": (["-1", "0", "5e-324", "100"], ["-1.0001", "100.001", "1e39"]),
    "xtc_probability": (["0", "5e-324", "1"], ["-5e-324", "1.0000001", "1e39"]),
    "xtc_threshold": (["0", "5e-324", "1"], ["-5e-324", "1.0000001", "1e39"]),
    "dry_multiplier": (["0", "5e-324", "100"], ["-5e-324", "100.001", "1e39"]),
    "dry_base": (["1", "100"], ["0.999", "-1", "100.001", "1e39"]),
    "timeout": (["0.001", "0.5", "1e9"], ["0", "-1", "5e-324", "1.1e9", "1e39", "1e308"]),
}
INTEGERS = {
    "top_k": (["-1", "0", "1", str(2**31 - 1)], ["-2", "1.5", *HUGE]),
    "repeat_last_n": (["-1", "0", str(2**31 - 1)], ["-2", "0.5", *HUGE]),
    "dry_allowed_length": (["0", str(2**31 - 1)], ["-1", "0.5", *HUGE]),
    "dry_penalty_last_n": (["-1", "0", str(2**31 - 1)], ["-2", "0.5", *HUGE]),
    "min_tokens": (["0", str(2**31 - 1)], ["-1", "0.5", *HUGE]),
    "n": (["1", "2"], ["0", "-1", *HUGE]),
    "best_of": (["1"], ["0", "-1", *HUGE]),
    "max_tokens": (["1", str(2**31 - 1)], ["-1", "0.5", *HUGE]),
    "max_completion_tokens": (["1"], ["0", "-1", *HUGE]),
    "max_output_tokens": (["1"], ["0", "-1", *HUGE]),
    "max_tool_calls": (["1"], ["0", "-1", *HUGE]),
    "top_logprobs": (["0", "20"], ["-1", "21", *HUGE]),
    "thinking_budget": (["-1", "0"], ["-2", *HUGE]),
    "thinking_token_budget": (["-1", "0"], ["-2", *HUGE]),
    "thinking_budget_tokens": (["-1", "0"], ["-2", *HUGE]),
    "dimensions": (["1"], ["0", "-1", *HUGE]),
    "top_n": (["1"], ["0", "-1", *HUGE]),
}
FIELDS = {**FLOATS, **INTEGERS}


def body(family: type[Body], name: str, value: str) -> bytes:
    """Insert `value` as raw text, which need not be valid JSON."""
    return json.dumps({**FAMILIES[family], name: "VALUE"}).replace('"VALUE"', value).encode()


CASES = [(family, name) for family in FAMILIES for name in FIELDS if name in family.model_fields]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_numbers_are_accepted_within_their_bounds_and_named_beyond(family: type[Body], name: str) -> None:
    within, beyond = FIELDS[name]
    for value in within:
        parse(family, body(family, name, value), lenient=False)
    for value in beyond:
        with pytest.raises(InvalidRequest) as caught:
            parse(family, body(family, name, value), lenient=False)
        assert caught.value.param == name, value
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_is_not_a_number_is_refused(family: type[Body]) -> None:
    for name, value in itertools.product(FIELDS.keys() & family.model_fields.keys(), NOT_NUMBERS):
        with pytest.raises(InvalidRequest):
            parse(family, body(family, name, value), lenient=False)


def unbounded(schema: object, at: str) -> Iterator[str]:
    """Yield the paths of numbers in a JSON Schema that lack a minimum or a maximum."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from unbounded(item, f"{at}[{index}]")
    if not isinstance(schema, dict):
        return
    if schema.get("type") in ("number", "integer"):
        ends = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        if not all(any(name in schema for name in names) for names in ends):
            yield at
    for name, inner in schema.items():
        yield from unbounded(inner, f"{at}.{name}")


@pytest.mark.parametrize("family", [*FAMILIES, AdapterBody, BatchBody, TokenizeBody, CountBody])
def test_every_number_has_both_bounds(family: type[Body]) -> None:
    """Seeds are exempt because they are folded, and tokens because they are compared with the vocabulary."""
    assert {name for _, name in CASES} == FIELDS.keys()
    paths = {re.sub(r"\[\d+\]", "", path) for path in unbounded(family.model_json_schema(), "")}
    exempt = r"seed|prompt|input\.|^\.properties\.content"
    assert {path for path in paths if not re.search(exempt, path)} == set()


GOOD = GenerationRequest(id="a", tokens=(1, 8), max_tokens=0, sampling=Sampling(seed=1))


def test_the_engine_has_bounds_for_every_number_of_sampling() -> None:
    fields = [field for field in msgspec.structs.fields(Sampling) if field.name != "seed"]
    for name in (field.name for field in fields if field.type in (int, float, int | None)):
        sampling = Sampling(**{"seed": 1, name: -3})
        assert msgspec.structs.replace(GOOD, sampling=sampling).wrong_number(vocab_size=9) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(
            ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty"),
            (float("nan"), float("inf"), -float("inf"), -3.0, 1e39),
        ),
        ("repeat_penalty", 1e-300),
        ("frequency_penalty", float("nan")),
        ("typical_p", 0.0),
        ("top_k", 0),
        ("top_k", 2**31),
        ("repeat_last_n", -1),
        ("repeat_last_n", 2**31),
        ("logit_bias", {5: float("inf")}),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", {9: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("scored", (9,)),
        ("stop_tokens", (9,)),
        ("min_tokens", -1),
        ("xtc_probability", float("nan")),
        ("top_n_sigma", -1.0),
        ("dry", DryPenalty(multiplier=float("nan"))),
        ("dry", DryPenalty(multiplier=1.0, base=0.5)),
        ("dry", DryPenalty(multiplier=1.0, last_n=-1)),
        ("tokens", (9,)),
        ("tokens", (-1,)),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
    ],
)
def test_the_engine_has_the_same_bounds(name: str, value: object) -> None:
    is_of_request = name in ("tokens", "max_tokens")
    sampling = Sampling(seed=1) if is_of_request else Sampling(**{"seed": 1, name: value})
    changed = {name: value} if is_of_request else {"sampling": sampling}
    assert GOOD.wrong_number(vocab_size=9) is None
    assert msgspec.structs.replace(GOOD, **changed).wrong_number(vocab_size=9) == name
