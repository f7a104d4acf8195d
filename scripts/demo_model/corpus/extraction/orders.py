"""Orders in words, notes and tables, and their JSON: who, what and how many, and the total."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_model.corpus.example import Example, Split
from demo_model.corpus.extraction.asking import Record, ask, nullable
from demo_model.corpus.phrasing import chance, one_of, sentence
from demo_model.corpus.task_words import SMALL, city, first_name, food, full_name, invented, street, thing
from demo_model.corpus.words import COLORS, join, plural, several


@dataclass(frozen=True)
class Item:
    name: str
    """As it stands in the order."""
    quantity: int


WISHED = ("[I would like|I want|I want to order|please send me|I need|can I have] {items}",
          "[we would like|please bring us] {items}",
          "[my order|the order] is {items}", "[I order|I will take] {items}")  # fmt: skip
SIGNED = (
    "[my name is|I am|this is] {v}",
    "[the order is|it is] for {v}",
    "[thanks|thank you|yours], {v}",
    "[name|customer]: {v}",
)
REPORTED = ("{customer} [ordered|bought|wants|would like] {items}",
            "[order|new order] [from|by] {customer}: {items}",
            "{items} for {customer}")  # fmt: skip
TOLD = {
    "total": (
        "the total is {v}",
        "[it costs|that makes|together that is] {v}",
        "total: {v}",
        "[the price is|I pay] {v}",
    ),
    "order_id": ("the order [number|id] is {v}", "order [number|id]: {v}", "[it is|this is] order {v}"),
    "address": ("[send it|please send it|deliver it] to {v}", "the address is {v}", "address: {v}"),
}
SCHEMAS: dict[str, dict[str, object]] = {
    "order_id": nullable("string"),
    "customer": nullable("string"),
    "items": {"type": "array", "items": {
        "type": "object", "properties": {"name": {"type": "string"}, "quantity": {"type": "integer"}},
        "required": ["name", "quantity"]}},
    "total": nullable("number"),
    "address": nullable("string"),
}  # fmt: skip
SKETCH = {
    "order_id": "string or null", "customer": "string or null",
    "items": '[{"name":string,"quantity":number}]',
    "total": "number or null", "address": "string or null",
}  # fmt: skip


def make(rng: random.Random, split: Split) -> Example:
    items = some_items(rng, split)
    told = details(rng, split)
    total = amount(rng)
    if "total" in told:
        told["total"] = rng.choice(("${0}", "{0} dollars", "{0} euros", "${0}", "{0}")).format(total)
    text = rng.choice((spoken, reported, table))(rng, told, items)
    answers: dict[str, object] = {key: told.get(key) for key in wanted(rng, told)}
    if "items" in answers:
        answers["items"] = [{"name": item.name, "quantity": item.quantity} for item in items]
    if "total" in told:
        answers["total"] = total
    schemas = {key: SCHEMAS[key] for key in answers}
    return ask(
        rng,
        Record(
            "extract_order", rng.choice(("order", "order", "message", "text")), text, answers, schemas, SKETCH
        ),
    )


def details(rng: random.Random, split: Split) -> dict[str, str]:
    """What the text tells besides the items."""
    told = {}
    if chance(rng, 0.3):
        told["order_id"] = f"{rng.choice(('', '', 'A', 'B', 'X', 'N-', 'ORD-'))}{rng.randint(100, 99999)}"
    if chance(rng, 0.85):
        told["customer"] = full_name(rng, split) if chance(rng, 0.6) else first_name(rng, split)
    if chance(rng, 0.75):
        told["total"] = ""
    if chance(rng, 0.25):
        told["address"] = f"{street(rng, split)}, {city(rng, split)}"
    return told


def wanted(rng: random.Random, told: dict[str, str]) -> list[str]:
    """The usual three keys, and the others where the text has them or (rarely) not."""
    keys = ("order_id", "customer", "items", "total", "address")
    usual = ("customer", "items", "total")
    return [key for key in keys if key in usual or chance(rng, 0.75 if key in told else 0.05)]


def amount(rng: random.Random) -> int | float:
    """Without a zero at the end, so that the number in JSON is written as in the text."""
    whole = rng.randint(2, 300)
    return (
        whole
        if chance(rng, 0.4)
        else whole + rng.choice((25, 75, 99, 95, 49, 15, 85, rng.randint(0, 9) * 10 + 5)) / 100
    )


def some_items(rng: random.Random, split: Split) -> list[Item]:
    names = several(
        lambda: plural((thing if chance(rng, 0.6) else food)(rng, split)), rng.choice((1, 2, 2, 3, 3, 4))
    )
    return [Item(dressed(rng, split, name), quantity(rng)) for name in names]


def dressed(rng: random.Random, split: Split, name: str) -> str:
    way = rng.random()
    if way < 0.25:
        return f"{rng.choice(COLORS)} {name}"
    return f"{invented(rng, split, 2)} {name}" if way < 0.5 else name


def quantity(rng: random.Random) -> int:
    return rng.randint(2, 12) if chance(rng, 0.8) else rng.randint(13, 60)


def counted(rng: random.Random, item: Item) -> str:
    word = SMALL[item.quantity] if item.quantity <= 12 and chance(rng, 0.5) else str(item.quantity)
    return f"{word} {item.name}"


def spoken(rng: random.Random, told: dict[str, str], items: list[Item]) -> str:
    parts = [one_of(rng, WISHED, items=join([counted(rng, item) for item in items])), *rest(rng, told)]
    if "customer" in told:
        signed = one_of(rng, SIGNED, v=told["customer"])
        parts.insert(
            len(parts) if signed.startswith(("thank", "yours")) else rng.choice((0, len(parts))), signed
        )
    return " ".join(sentence(one) for one in parts)


def reported(rng: random.Random, told: dict[str, str], items: list[Item]) -> str:
    counts = join([counted(rng, item) for item in items])
    if "customer" not in told:
        first = f"{rng.choice(('new order', 'an order came in', 'order'))}: {counts}"
    else:
        first = one_of(rng, REPORTED, items=counts, customer=told["customer"])
    return " ".join(sentence(one) for one in (first, *rest(rng, told)))


def rest(rng: random.Random, told: dict[str, str]) -> list[str]:
    keys = [key for key in told if key != "customer"]
    rng.shuffle(keys)
    return [one_of(rng, TOLD[key], v=told[key]) for key in keys]


def table(rng: random.Random, told: dict[str, str], items: list[Item]) -> str:
    """One line an item, the rest with labels."""
    form = rng.choice(("{q} x {name}", "- {q} {name}", "{name}: {q}", "{name} x {q}", "{q} {name}"))
    lines = [form.format(q=item.quantity, name=item.name) for item in items]
    labels = {"order_id": "Order", "customer": "Customer", "total": "Total", "address": "Ship to"}
    head = [f"{labels[key]}: {told[key]}" for key in ("order_id", "customer") if key in told]
    tail = [f"{labels[key]}: {told[key]}" for key in ("total", "address") if key in told]
    return "\n".join((*head, *lines, *tail))
