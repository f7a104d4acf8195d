"""Texts drawn from a format are read by Python's own parsers and by pydantic."""

from __future__ import annotations

import ipaddress
import json
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pydantic
import pytest

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import Unenforced
from openai_cpu_server.structured.scalars.regex import STRING_FORMATS
from tests.structured.making import check_schema, schema_to_lark
from tests.structured.oracle import Sampler, check_ours, compact

pytestmark = pytest.mark.thorough

Reader = Callable[[str], object]  # raises ValueError
IS_OLD_PYTHON = sys.version_info < (3, 11)  # an old Python reads few times with a zone


def pydantic_reader(kind: Any) -> Reader:
    adapter = pydantic.TypeAdapter(kind)
    return lambda text: adapter.validate_json(json.dumps(text))


READERS: dict[str, list[Reader]] = {
    **{name: [] for name in ("email", "hostname", "uri-template", "json-pointer")},
    "date": [date.fromisoformat, pydantic_reader(date)],
    "time": [time.fromisoformat, pydantic_reader(time)][IS_OLD_PYTHON:],
    "date-time": [datetime.fromisoformat, pydantic_reader(datetime)][IS_OLD_PYTHON:],
    "duration": [pydantic_reader(timedelta)],
    "ipv4": [ipaddress.IPv4Address],
    "ipv6": [ipaddress.IPv6Address],
    **{name: [lambda text: urlsplit(text).port] for name in ("uri", "uri-reference")},
    "uuid": [uuid.UUID],
    **{f"uuid{n}": [pydantic_reader(getattr(pydantic, f"UUID{n}"))] for n in (1, 3, 4, 5, 6, 7, 8)},
    "ipv4interface": [ipaddress.IPv4Interface],
    "ipv4network": [ipaddress.IPv4Network],
    "ipv6interface": [ipaddress.IPv6Interface],
    "ipv6network": [ipaddress.IPv6Network],
    "ipvanyaddress": [pydantic_reader(pydantic.IPvAnyAddress)],
    "ipvanyinterface": [pydantic_reader(pydantic.IPvAnyInterface)],
    "ipvanynetwork": [pydantic_reader(pydantic.IPvAnyNetwork)],
    "base64": [pydantic_reader(pydantic.Base64Bytes)],
    "base64url": [pydantic_reader(pydantic.Base64UrlBytes)],
}
CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def failing_readers(name: str, text: str) -> Iterator[Reader]:
    for reader in READERS[name]:
        try:
            reader(text)
        except ValueError:
            yield reader


def is_read(name: str, text: str) -> bool:
    return not any(failing_readers(name, text))


def is_accepted(grammar: GrammarCheck, text: str) -> bool:
    return grammar.check(compact(text)).fits


@pytest.mark.parametrize("name", STRING_FORMATS)
def test_drawn_texts_are_read(name: str) -> None:
    sampler, rng = Sampler(schema_to_lark({"type": "string", "format": name})), random.Random(20240229)
    drawn = [json.loads(text) for _ in range(150) if (text := sampler.draw(rng)) is not None]
    assert len(drawn) > 100
    assert [text for text in drawn if not CHECKER.conforms(text, name)] == []
    assert [(text, reader) for text in drawn for reader in failing_readers(name, text)] == []


@pytest.mark.parametrize("name", ["email", "hostname", "uri", "uri-reference"])
def test_texts_drawn_within_a_length_have_the_format(name: str) -> None:
    rng, lengths = random.Random(20240229), {"minLength": 8, "maxLength": 60}
    sampler = Sampler(schema_to_lark({"type": "string", "format": name, **lengths}))
    drawn = [json.loads(text) for _ in range(200) if (text := sampler.draw(rng)) is not None]
    assert len(drawn) > 100
    assert [x for x in drawn if not 8 <= len(x) <= 60 or not CHECKER.conforms(x, name)] == []
    whole = check_schema({"type": "string", "format": name})
    assert [text for text in drawn if not is_accepted(whole, text)] == []


def test_dates_are_exactly_those_of_python() -> None:
    grammar = check_schema({"format": "date"})
    leap_days = [f"{year:04}-02-29" for year in {*range(0, 10_000, 4), *range(1, 10_000, 9)}]
    years = (0, 1, 100, 1900, 2000, 2023, 2024, 9999)
    days = [f"{y:04}-{m:02}-{d:02}" for y in years for m in range(14) for d in range(33)]
    assert [text for text in leap_days + days if is_accepted(grammar, text) != is_read("date", text)] == []


@pytest.mark.parametrize(
    "longest",
    ["P999999Y9999999M99999999DT999999H999999M999999S", "PT9999999M9999999S", "PT999999999S", "P99999999W"],
)
def test_the_longest_durations_are_read(longest: str) -> None:
    grammar = check_schema({"format": "duration"})
    assert is_accepted(grammar, longest)
    assert is_read("duration", longest)
    assert not is_accepted(grammar, longest[:-1] + "9" + longest[-1])


@pytest.mark.parametrize("name", ["uri", "uri-reference"])
def test_ports_are_of_sixteen_bits(name: str) -> None:
    grammar = check_schema({"format": name})
    ports = [*range(10_000, 100_000, 999), *range(65_480, 65_620), 9, 9999, 100_000]
    assert [p for p in ports if is_accepted(grammar, f"http://a:{p}/") != (p < 2**16)] == []
    assert is_accepted(grammar, "http://a:/")


@pytest.mark.parametrize(
    ("name", "more", "accepted", "rejected"),
    [
        ("time", {"pattern": "^([01]\\d|2[0-3]):[0-5]\\d$"}, ["23:59"], ["24:00", "23:59:00Z"]),
        ("date-time", {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d$"}, ["2024-02-29T10:00"],
         ["2024-02-29T10:00Z"]),
        ("date", {"pattern": r"^\d{2}/\d{2}/\d{4}$"}, ["01/02/2024"], ["2024-01-02"]),
        ("uuid", {"pattern": "^[0-9a-f]{32}$"}, ["0" * 32], ["0" * 31]),
        ("uri", {"pattern": "^/"}, ["/a", "/"], ["a"]),
        ("date", {"maxLength": 7}, ["2024-02", ""], ["2024-02-29"]),
        ("ipv4", {"enum": ["localhost", "a"]}, ["localhost"], ["1.2.3.4"]),
        ("email", {"const": "nobody"}, ["nobody"], ["a@b.c"]),
    ],
)  # fmt: skip
def test_a_format_that_contradicts_its_schema_is_ignored_and_reported(name, more, accepted, rejected):
    text = {"type": "string", "format": name, **more}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    assert compile_schema(schema).unenforced == (Unenforced("/properties/a", "format"),)
    check_ours(schema, [{"a": text} for text in accepted], [{"a": text} for text in rejected])


ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
ZOD_HOSTNAME = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)


@pytest.mark.parametrize(
    "more",
    [
        *({"pattern": p} for p in (".+", r"@example\.com$", "^[a-z]", r"^[^@]+@[^@]+$", ZOD_EMAIL, "e.*e")),
        {"pattern": ZOD_EMAIL, "maxLength": 254},
        {"pattern": ".+", "minLength": 10, "maxLength": 10_000},
        {"allOf": [{"pattern": "com$"}, {"pattern": "^me"}]},
        {"not": {"pattern": "spam"}},
    ],
)
def test_an_address_beside_any_pattern(more) -> None:
    rejected = ["me", "me@@example.com", "", "me.example.com", "@example.com"]
    check_ours({"type": "string", "format": "email", **more}, ["me@example.com"], rejected)


@pytest.mark.parametrize("more", [{"pattern": p} for p in (".+", r"\.com$", ZOD_HOSTNAME)])
def test_a_host_beside_any_pattern(more) -> None:
    host = {"type": "string", "format": "hostname", **more}
    check_ours(host, ["www.example.com"], ["-.com", "a b.com", ""])
    check_ours({"type": "string", **more}, ["www.example.com"], [""])


def test_padding_of_base64_in_urls_may_be_left_out_beside_a_pattern() -> None:
    zod = {"type": "string", "format": "base64url", "pattern": "^[A-Za-z0-9_-]*$"}
    check_ours(zod, ["", "QQ", "QUI", "QUJD"], ["QQ==", "Q", "QQ="])
    check_ours({**zod, "pattern": "^Q"}, ["QQ", "QQ==", "QUI="], ["QQ=", "Q"])
    check_ours({"type": "string", "format": "base64url"}, ["QQ==", "QUI="], ["QQ", "QUI"])


@pytest.mark.parametrize(
    ("names", "accepted", "rejected"),
    [
        (("ipv4", "ipv6", "hostname"), ["::1", "a.b", "localhost"], ["1.2.3.4", "a_b", ""]),
        (("email", "uri", "hostname"), ["a@b.c", "http://a/", "a.b"], ["a b", "@"]),
    ],
)
def test_one_of_three_formats_needs_no_automaton_of_all(
    names: tuple[str, ...], accepted: list[str], rejected: list[str]
) -> None:
    """A text of two of the formats is refused: each IPv4 address is a hostname as well."""
    schema = {"type": "string", "oneOf": [{"format": name} for name in names]}
    check_ours(schema, accepted, rejected)
    assert compile_schema(schema).unenforced == ()
