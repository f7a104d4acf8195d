"""Contacts in signatures, notes and cards, and their JSON with null for what the text does not give."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from demo_model.corpus.example import Example, Split
from demo_model.corpus.extraction.asking import Record, ask, nullable
from demo_model.corpus.phrasing import chance, one_of, sentence, vary
from demo_model.corpus.task_words import city, company, full_name, job, phone, street
from demo_model.corpus.words import a

SENTENCES = {
    "email": ("[my|the] email [address |]is {v}", "you can [write to|email] {v}",
              "[write|send a message] to {v}",
              "[mail|email]: {v}"),
    "phone": ("[my|the] [phone |]number is {v}", "[call|ring] {v}", "you can [call|reach me at] {v}",
              "[phone|tel]: {v}",
              "the best number is {v}"),
    "city": ("I live in {v}", "[we are|I am] in {v}", "[my|our] office is in {v}", "[city|town]: {v}",
             "I moved to {v}"),
    "company": ("I work [for|at] {v}", "my company is {v}", "[company|firm]: {v}", "I am with {v}"),
    "job": ("I am {a_v}", "I work as {a_v}", "job: {v}", "my job is that of {a_v}"),
    "address": ("[my|our] address is {v}", "[send letters|the post goes] to {v}", "address: {v}",
                "you find me at {v}"),
}  # fmt: skip
NAMED = (
    "[my name is|I am|this is] {v}",
    "[hello|hi], [this is|I am] {v}",
    "[name|contact]: {v}",
    "here is {v}",
)
ABOUT = {
    "email": ("the email [address |]is {v}", "write to {v}"),
    "phone": ("the [phone |]number is {v}", "call {v}"),
    "city": ("the city is {v}", "the office is in {v}"),
    "company": ("the company is {v}", "the employer is {v}"),
    "job": ("the job is {v}", "the work is that of {a_v}"),
    "address": ("the address is {v}", "letters go to {v}"),
}
ABOUT_NAMED = (
    "[please|you can|you should] [contact|call|ask for] {v}",
    "[our|the] new contact is {v}",
    "[I met|I talked to] {v} [today|yesterday|last week]",
)
LABELS = {
    "name": ("Name", "Contact", "Full name"), "email": ("Email", "E-mail", "Mail"), "phone": ("Phone", "Tel",
                                                                                              "Mobile"),
    "city": ("City", "Town"), "company": ("Company", "Firm", "Works at"), "job": ("Job", "Work", "Position"),
    "address": ("Address", "Street"),
}  # fmt: skip
SMALL_TALK = ("It was nice to meet you", "Thank you for your letter", "I hope to hear from you soon",
              "Have a nice day", "See you next week", "Please write back soon",
              "Thanks for your help")  # fmt: skip
MAIN, MORE = ("name", "email", "phone", "city"), ("company", "job", "address")


def make(rng: random.Random, split: Split) -> Example:
    values = person(rng, split)
    keys = [*MAIN, *(key for key in MORE if chance(rng, 0.3))]
    told = {key: values[key] for key in keys if key == "name" or chance(rng, 0.75)}
    extra = {key: values[key] for key in MORE if key not in keys and chance(rng, 0.15)}
    text = rng.choice((signature, by_oneself, by_others, labelled))(rng, {**told, **extra})
    schemas = {key: nullable("string") if key != "name" else {"type": "string"} for key in keys}
    answers = {key: told.get(key) for key in keys}
    noun = rng.choice(("contact", "message", "note", "text", "card"))
    sketch = dict.fromkeys(keys, "string or null")
    return ask(rng, Record("extract_contact", noun, text, answers, schemas, sketch))


def person(rng: random.Random, split: Split) -> dict[str, str]:
    name, firm = full_name(rng, split), company(rng, split)
    return {
        "name": name, "email": email(rng, name, firm), "phone": phone(rng), "city": city(rng, split),
        "company": firm, "job": job(rng, split), "address": street(rng, split),
    }  # fmt: skip


def email(rng: random.Random, name: str, firm: str) -> str:
    first, last = name.lower().split()
    user = rng.choice(
        (f"{first}.{last}", first, f"{first}{rng.randint(1, 99)}", f"{first[0]}.{last}", f"{last}{first[0]}")
    )
    host = rng.choice(
        (firm.lower().replace(" ", ""), firm.lower().replace(" ", "-"), "mail", "post", "example", last)
    )
    return f"{user}@{host}.{rng.choice(('com', 'org', 'net', 'example', 'de', 'fr'))}"


def signature(rng: random.Random, told: dict[str, str]) -> str:
    """Lines of values, the name first, as below a letter."""
    rest = [value for key, value in told.items() if key != "name"]
    rng.shuffle(rest)
    greeting = rng.choice(("Best wishes,", "Kind regards,", "Yours,", "Thanks,", "See you soon,"))
    talk = [f"{rng.choice(SMALL_TALK)}."] if chance(rng, 0.6) else []
    return "\n".join((*talk, greeting, told["name"], *rest))


def by_oneself(rng: random.Random, told: dict[str, str]) -> str:
    parts = [one_of(rng, NAMED, v=told["name"]), *clauses(rng, told, SENTENCES)]
    if chance(rng, 0.4):
        parts.append(rng.choice(SMALL_TALK))
    return " ".join(sentence(one) for one in parts)


def by_others(rng: random.Random, told: dict[str, str]) -> str:
    parts = [one_of(rng, ABOUT_NAMED, v=told["name"]), *clauses(rng, told, ABOUT)]
    return " ".join(sentence(one) for one in parts)


def clauses(rng: random.Random, told: dict[str, str], frames: Mapping[str, Sequence[str]]) -> list[str]:
    keys = [key for key in told if key != "name"]
    rng.shuffle(keys)
    return [one_of(rng, frames[key], v=told[key], a_v=a(told[key])) for key in keys]


def labelled(rng: random.Random, told: dict[str, str]) -> str:
    keys = list(told)
    rng.shuffle(keys)
    gap = rng.choice(("\n", "\n", ", ", "; "))
    return gap.join(vary(rng, "{label}: {v}", label=rng.choice(LABELS[key]), v=told[key]) for key in keys)
