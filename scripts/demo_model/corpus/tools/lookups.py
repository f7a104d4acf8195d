"""Tools that find something out: weather, calculator, search, time, currency, translation, prices."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from demo_model.corpus import task_words, words
from demo_model.corpus.example import Split, ToolCall
from demo_model.corpus.languages import LANGUAGES
from demo_model.corpus.phrasing import capital, chance, one_of, vary
from demo_model.corpus.task_words import city, company, full_name, invented_name
from demo_model.corpus.tools.use import NUMBER, STRING, ToolUse, choice_of, tool

SKIES = ("sunny", "rainy", "cloudy", "windy", "foggy", "snowy", "stormy", "clear")
OPERATORS = {"+": "plus", "-": "minus", "*": "times"}
CURRENCIES = ("dollars", "euros", "pounds", "yen", "francs", "crowns", "pesos", "rupees")


def weather(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(
        ("get_weather", "weather", "current_weather", "check_weather", "get_forecast", "weather_report")
    )
    place_key = rng.choice(("city", "city", "location", "place", "town"))
    with_unit, town = chance(rng, 0.4), city(rng, split)
    unit = rng.choice(("celsius", "fahrenheit")) if with_unit and chance(rng, 0.6) else ""
    optional = {"unit": choice_of("celsius", "fahrenheit")} if with_unit else {}
    offered = tool(name, one_of(rng, ("[Get|Give|Show] the weather [of|for|in] a {k}",
                                      "The weather [today|now]",
                                      "Weather for a {k}"), k=place_key), {place_key: STRING},
                                      optional)  # fmt: skip
    request = one_of(rng, ("[What is|How is] the weather in {c}[ today| now|]{u}?",
                           "[Is it warm|Is it cold|Does it rain|Is it sunny] in {c}{u}?",
                           "[Tell me|Check|Show me] the weather in {c}{u}.",
                           "How [warm|cold|hot] is it in {c}{u}?",
                           "I [travel|go] to {c}. [What is the weather there|How is the weather there]{u}?"),
                     c=town, u=f" in {unit}" if unit else "")  # fmt: skip
    use = weather_in(rng, offered, name, place_key, town, {"unit": unit} if unit else {})
    return replace(use, request=request)


def weather_in(
    rng: random.Random, offered: Mapping[str, object], name: str, key: str, town: str, more: Mapping[str, str]
) -> ToolUse:
    degrees, sky = rng.randint(-9, 38), rng.choice(SKIES)
    result = {key: town, "temperature": degrees, "condition": sky}
    answer = f"In {town} it is {sky} and {degrees} degrees."
    return ToolUse(
        offered, "", ToolCall(name, {key: town, **more}), result, answer, (town, sky, str(degrees))
    )


def two_weathers(rng: random.Random, split: Split) -> list[ToolUse]:
    """Two calls of one tool. The whole request stands in the first."""
    drawn = weather(rng, split)
    key = next(iter(drawn.call.arguments))
    first, second = words.several(lambda: city(rng, split), 2)
    request = one_of(
        rng,
        ("[What is|How is] the weather in {a} and [in |]{b}?",
         "[Compare|Check|Tell me] the weather in {a} and {b}."),
        a=first, b=second,
    )  # fmt: skip
    uses = [weather_in(rng, drawn.tool, drawn.call.name, key, town, {}) for town in (first, second)]
    return [replace(uses[0], request=request), uses[1]]


def calculator(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("calculator", "calculate", "compute", "evaluate", "calc", "do_math"))
    key = rng.choice(("expression", "expression", "formula", "input"))
    numbers = [rng.randint(2, 999 if chance(rng, 0.5) else 60) for _ in range(rng.choice((2, 2, 2, 3)))]
    signs = [rng.choice(list(OPERATORS)) for _ in numbers[1:]]
    expression = spelled(numbers, signs)
    spoken = spelled(numbers, [OPERATORS[sign] for sign in signs]) if chance(rng, 0.6) else expression
    value = worked_out(numbers, signs)
    request = one_of(rng, ("[What is|How much is] {s}?", "[Calculate|Compute|Work out] {s}.",
                           "[Please tell me|Tell me] {s}.",
                           "{s} = ?", "Can you [calculate|work out] {s}?"), s=spoken)  # fmt: skip
    offered = tool(
        name, vary(rng, "[Calculate|Work out|Evaluate] [a sum|an expression|a formula]"), {key: STRING}
    )
    answer = one_of(rng, ("{e} = {v}.", "The result is {v}.", "It is {v}."), e=expression, v=value)
    return ToolUse(
        offered, request, ToolCall(name, {key: expression}), {"result": value}, answer, (str(value),)
    )


def spelled(numbers: list[int], signs: list[str]) -> str:
    return str(numbers[0]) + "".join(
        f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True)
    )


def worked_out(numbers: list[int], signs: list[str]) -> int:
    """Products first, then from left to right."""
    terms = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            terms[-1] *= number
        else:
            terms.append(number if sign == "+" else -number)
    return sum(terms)


def search(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("search", "web_search", "search_web", "find_online", "search_internet", "look_up"))
    key = rng.choice(("query", "query", "q", "text", "terms"))
    query, found, fact = rng.choice((mountain, founding, writer, shop_hours))(rng, split)
    request = one_of(rng, ("[Search|Look|Search the web|Search online] for {q}.",
                           "[Look up|Google|Search] {q}[ online| on the web|].",
                           "[Find|Find out|Look up] {q}.", "Can you [search for|look up|find] {q}?",
                           "[I want to know|I need to know] {q}."), q=query)  # fmt: skip
    offered = tool(
        name, vary(rng, "[Search|Look something up in|Find pages on] the [web|internet]"), {key: STRING}
    )
    result = {"results": [{"title": capital(query), "text": found}]}
    answer = f"{rng.choice(('I found this: ', 'The web says: ', ''))}{found}"
    return ToolUse(offered, request, ToolCall(name, {key: query}), result, answer, (fact,))


def mountain(rng: random.Random, split: Split) -> tuple[str, str, str]:
    name, high = (
        f"{rng.choice(('Mount', 'Tower', 'Lake'))} {invented_name(rng, split)}",
        str(rng.randint(30, 8800)),
    )
    return f"the height of {name}", f"{name} is {high} meters high.", high


def founding(rng: random.Random, split: Split) -> tuple[str, str, str]:
    name, year = city(rng, split) if chance(rng, 0.5) else company(rng, split), str(rng.randint(900, 2020))
    return f"the history of {name}", f"{name} was founded in {year}.", year


def writer(rng: random.Random, split: Split) -> tuple[str, str, str]:
    name, job = full_name(rng, split), task_words.job(rng, split)
    return (
        f"{rng.choice(('the job of ', 'facts about ', 'news about '))}{name}",
        f"{name} is {words.a(job)}.",
        job,
    )


def shop_hours(rng: random.Random, split: Split) -> tuple[str, str, str]:
    name, hour = company(rng, split), f"{rng.randint(6, 11)} am"
    return f"the opening hours of {name}", f"{name} opens at {hour}.", hour


def local_time(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("get_time", "local_time", "current_time", "time_in"))
    key, town, now = (
        rng.choice(("city", "place", "location")),
        city(rng, split),
        f"{rng.randint(0, 23)}:{rng.randint(10, 59)}",
    )
    request = one_of(
        rng,
        ("What time is it in {c}[ now|]?", "[Tell me|Give me] the time in {c}.", "How late is it in {c}?"),
        c=town,
    )
    offered = tool(name, f"The time of day in a {key}", {key: STRING})
    return ToolUse(
        offered, request, ToolCall(name, {key: town}), {"time": now}, f"In {town} it is {now}.", (now,)
    )


def currency(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("convert_currency", "exchange", "change_money", "currency"))
    source, target = rng.sample(CURRENCIES, 2)
    keys = rng.choice((("from", "to"), ("source", "target"), ("from_currency", "to_currency")))
    amount, value = rng.randint(2, 900), rng.randint(100, 9999) / 10
    request = one_of(rng, ("[Convert|Change] {n} {s} [to|into] {t}.",
                           "How [much|many {t}] [is|are] {n} {s} in {t}?",
                           "What are {n} {s} in {t}?"), n=amount, s=source, t=target)  # fmt: skip
    offered = tool(name, vary(rng,
                              "[Convert|Change] money [from one currency to another|between currencies]"),
                   {"amount": NUMBER, keys[0]: STRING, keys[1]: STRING})  # fmt: skip
    call = ToolCall(name, {"amount": amount, keys[0]: source, keys[1]: target})
    return ToolUse(offered, request, call, {"amount": value, "currency": target},
                   f"{amount} {source} are {value} {target}.", (str(value), target))  # fmt: skip


def translation(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("translate", "translate_text", "get_translation"))
    key = rng.choice(("language", "target_language", "to"))
    target = rng.choice([language for language in LANGUAGES if language != "English"])
    at = rng.randrange(len(LANGUAGES["English"].objects))
    text, translated = LANGUAGES["English"].objects[at], LANGUAGES[target].objects[at]
    if chance(rng, 0.5):
        text, translated = words.invented_word(rng, split), words.invented_word(rng, split)
    request = one_of(rng, ('[Translate|Please translate] "{x}" [to|into] {t}.',
                           'How do you say "{x}" in {t}?',
                           'What is "{x}" in {t}?', "Translate to {t}: {x}"), x=text, t=target)  # fmt: skip
    offered = tool(
        name,
        vary(rng, "Translate [text|words|a text] into [a|another] language"),
        {"text": STRING, key: STRING},
    )
    return ToolUse(offered, request, ToolCall(name, {"text": text, key: target}), {"translation": translated},
                   f'"{text}" in {target} is "{translated}".', (translated,))  # fmt: skip


def price(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("get_price", "product_price", "find_price", "price_of"))
    key, thing = rng.choice(("product", "item", "name")), task_words.thing(rng, split)
    product = (
        f"{invented_name(rng, split)} {thing}" if chance(rng, 0.5) else f"{rng.choice(words.COLORS)} {thing}"
    )
    cost = rng.randint(2, 400)
    request = one_of(rng, ("What does the {p} cost?", "[Find|Tell me|Show me] the price of the {p}.",
                           "How much is the {p}?"), p=product)  # fmt: skip
    offered = tool(name, vary(rng, "The price of [a product|an item|something] in the shop"), {key: STRING})
    return ToolUse(offered, request, ToolCall(name, {key: product}), {"price": cost},
                   f"The {product} costs {cost}.", (str(cost),))  # fmt: skip
