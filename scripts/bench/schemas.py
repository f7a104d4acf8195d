"""Typical JSON Schemas of answers, limited so that even a random model comes to an end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.asking import Ask, JsonSchema


def _object(**properties: JsonSchema) -> JsonSchema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(longest: int) -> JsonSchema:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def _matching(pattern: str) -> JsonSchema:
    return {"type": "string", "pattern": pattern}


def _integer(least: int, most: int) -> JsonSchema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _list(items: JsonSchema, least: int, most: int) -> JsonSchema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _one_of(*values: str) -> JsonSchema:
    return {"type": "string", "enum": list(values)}


_YES_NO: JsonSchema = {"type": "boolean"}

REVIEW = _object(
    rating=_integer(1, 5),
    pros=_list(_text(40), 1, 3),
    cons=_list(_text(40), 1, 3),
    summary=_text(80),
)
CONTACT = _object(
    name=_text(30),
    email=_matching(r"^[a-z]{2,12}\.[a-z]{2,12}@example\.(com|org)$"),
    phone=_matching(r"^\+[1-9][0-9]{7,11}$"),
    address=_object(
        street=_text(30),
        postal_code=_matching("^[0-9]{5}$"),
        city=_text(20),
        country=_one_of("Austria", "Canada", "France", "Germany", "Japan"),
    ),
    is_customer=_YES_NO,
)
EVENT = _object(
    title=_text(60),
    date={"type": "string", "format": "date"},
    start_time=_matching("^([01][0-9]|2[0-3]):[0-5][0-9]$"),
    duration_minutes=_integer(15, 480),
    location=_text(30),
    participants=_list(_text(20), 1, 4),
    priority=_one_of("low", "medium", "high"),
)
ORDER = _object(
    order_id=_matching("^ORD-[0-9]{6}$"),
    items=_list(
        _object(product=_text(30), quantity=_integer(1, 99), unit_price_cents=_integer(1, 100_000)), 1, 3
    ),
    shipping_method=_one_of("standard", "express", "pickup"),
    currency=_one_of("EUR", "USD", "GBP"),
    is_gift=_YES_NO,
    note=_text(60),
)

ALL = (REVIEW, CONTACT, EVENT, ORDER)


def following(asks: Sequence[Ask]) -> list[Ask]:
    return [msgspec.structs.replace(ask, schema=ALL[i % len(ALL)]) for i, ask in enumerate(asks)]
