"""Counting things and letters; naming, sorting and picking members of lists."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from demo_model.corpus import words
from demo_model.corpus.example import Example, Maker, Split
from demo_model.corpus.phrases import HELPERS, choose, exchange, some_system


@dataclass(frozen=True)
class Task:
    question: str
    reply: str
    expected: Mapping[str, object]


_TaskMaker = Callable[[random.Random, Split], Task]

CATEGORIES: dict[str, Sequence[str]] = {
    "animals": words.ANIMALS,
    "farm animals": words.FARM_ANIMALS,
    "wild animals": words.WILD_ANIMALS,
    "pets": words.PETS,
    "fruits": words.FRUIT,
    "vegetables": words.VEGETABLES,
    "toys": words.TOYS,
    "tools": words.TOOLS,
    "clothes": words.CLOTHES,
    "musical instruments": words.MUSIC,
    "vehicles": words.VEHICLES,
    "flowers": words.FLOWERS,
    "trees": words.TREES,
    "jobs": words.JOBS,
    "colors": words.COLORS,
    "cities": words.CITIES,
    "countries": words.COUNTRIES,
    "days of the week": words.DAYS,
    "months": words.MONTHS,
    "things in a house": words.HOUSE,
    "girls' names": words.part(words.GIRLS, Split.TRAIN),
    "boys' names": words.part(words.BOYS, Split.TRAIN),
}
_COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def _some_numbers(rng: random.Random, split: Split, least: int, most: int) -> list[int]:
    """Different numbers of a combination that is the split's."""
    while True:
        found = rng.sample(range(1, rng.choice((20, 100, 100, 500))), rng.randint(least, most))
        if words.belongs(split, *found):
            return found


def _row(rng: random.Random, items: Sequence[object]) -> str:
    return rng.choice((", ", ", ", " ", "; ")).join(map(str, items))


def _task(question: str, reply: str, answer: object) -> Task:
    return Task(question, reply, {"answer": str(answer)})


# Counting


def _count_items(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 2, 9)
    row = ", ".join(items)
    question = choose(
        rng,
        f"{{How many words are in this list: {row}?|Count the items: {row}|How many items are there? {row}"
        f"|How many things do I name? {row}.}}",
    )
    return _task(question, _counted(rng, len(items), row), len(items))


def _counted(rng: random.Random, number: int, row: str) -> str:
    numbered = " ".join(f"{place} {word}" for place, word in enumerate(row.split(", "), 1))
    return rng.choice((f"There are {number}.", str(number), f"{numbered}. That is {number}."))


def _letters_of(rng: random.Random, split: Split) -> str:
    while True:
        draw = rng.choice((words.name, words.thing, words.animal, words.food, words.invented_word))
        word = draw(rng, split).lower()
        if word.isalpha() and len(word) <= 9:
            return word


def _count_letters(rng: random.Random, split: Split) -> Task:
    word = _letters_of(rng, split)
    question = choose(
        rng,
        (
            f"{{How many letters does the word {word} have?|Count the letters in {word}.|How many "
            f"letters are in {word}?}}"
        ),
    )
    spelled = "-".join(word)
    return _task(question, f"{spelled}: {len(word)} letters.", len(word))


def _count_one_letter(rng: random.Random, split: Split) -> Task:
    word = _letters_of(rng, split)
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("aeiourst")
    number = word.count(letter)
    question = choose(
        rng, f"{{How many times is the letter {letter} in {word}?|How often does {letter} stand in {word}?}}"
    )
    times = "once" if number == 1 else f"{number} times"
    reply = f"{'-'.join(word)}: the letter {letter} is in it {times}."
    return _task(question, reply, "once" if number == 1 else number)


def _spell(rng: random.Random, split: Split) -> Task:
    word = _letters_of(rng, split)
    question = choose(
        rng,
        f"{{Spell {word}.|Spell the word {word}.|How do you spell {word}?|Write {word} letter by letter.}}",
    )
    spelled = "-".join(word)
    return _task(question, spelled, spelled)


def _end_letters(rng: random.Random, split: Split) -> Task:
    word = _letters_of(rng, split)
    which, letter = rng.choice((("first", word[0]), ("last", word[-1])))
    question = choose(
        rng, f"{{What is the {which} letter of {word}?|Tell me the {which} letter of the word {word}.}}"
    )
    return _task(question, f"The {which} letter of {word} is {letter}.", letter)


def _count_word(rng: random.Random, split: Split) -> Task:
    first, second = words.several(lambda: words.food(rng, split), 2)
    numbers = (rng.randint(1, 6), rng.randint(1, 6))
    row = [first] * numbers[0] + [second] * numbers[1]
    rng.shuffle(row)
    question = choose(
        rng, f"{{How often is {first} in this list|How many times do I say {first}}}: {', '.join(row)}?"
    )
    return _task(question, rng.choice((str(numbers[0]), f"The answer is {numbers[0]}.")), numbers[0])


def _count_up(rng: random.Random, split: Split) -> Task:
    while True:
        start, length = rng.randint(0, 90), rng.randint(3, 12)
        if words.belongs(split, start, length):
            break
    row = list(range(start, start + length))
    if rng.random() < 0.3:
        row.reverse()
    ask = "{Count from # to @.|List the numbers from # to @.|Write all numbers from # to @.|Count # to @.}"
    question = choose(rng, ask).replace("#", str(row[0])).replace("@", str(row[-1]))
    shown = ", ".join(map(str, row))
    return _task(question, shown, shown)


def _even_or_odd(rng: random.Random, split: Split) -> Task:
    while True:
        number = rng.randint(0, 1000)
        if words.belongs(split, "even", number):
            break
    answer = "even" if number % 2 == 0 else "odd"
    question = choose(
        rng, f"{{Is {number} even or odd?|Is the number {number} odd or even?|{number}: even or odd?}}"
    )
    return _task(question, rng.choice((f"{number} is {answer}.", answer)), answer)


# Lists


def _name_some(rng: random.Random, split: Split) -> Task:
    """Any different members of the category are right."""
    while True:
        category, count = rng.choice(list(CATEGORIES)), rng.choice(list(_COUNTS))
        if words.belongs(split, category, count):
            break
    found = rng.sample(list(CATEGORIES[category]), count)
    number = rng.choice((str(count), _COUNTS[count]))
    ask = choose(
        rng, f"{{Name|List|Give me|Tell me|Write down|Can you name}} {{#|#|# different}} {category}"
    ).replace("#", number)
    question = ask + ("?" if ask.startswith("Can") else ".")
    plain, numbered = ", ".join(found), "\n".join(f"{place}. {word}" for place, word in enumerate(found, 1))
    dashed = "\n".join(f"- {word}" for word in found)
    shape = rng.choice(
        ("", "", "", " Use a numbered list.", " Number them.", " Use dashes.", " Separate them by commas.")
    )
    shown = {" Use a numbered list.": numbered, " Number them.": numbered, " Use dashes.": dashed}.get(
        shape, plain
    )
    return Task(question + shape, shown, {"count": count, "category": category})


def _sort_numbers(rng: random.Random, split: Split) -> Task:
    numbers = _some_numbers(rng, split, 3, 6)
    down = rng.random() < 0.3
    order = rng.choice(
        ("from big to small", "in falling order") if down else ("", "from small to big", "in rising order")
    )
    question = _sort_question(rng, "these numbers", order, numbers)
    answer = ", ".join(map(str, sorted(numbers, reverse=down)))
    return _task(question, answer, answer)


def _sort_words(rng: random.Random, split: Split) -> Task:
    items = words.several(lambda: _letters_of(rng, split), rng.randint(3, 5))
    order = rng.choice(("", "from A to Z", "by the alphabet", "alphabetically"))
    question = _sort_question(rng, "these words", order, items)
    answer = ", ".join(sorted(items))
    return _task(question, answer, answer)


def _sort_question(rng: random.Random, what: str, order: str, items: Sequence[object]) -> str:
    ask = rng.choice(("Sort", "Put in order", "Please sort"))
    return f"{ask} {what}{' ' + order if order else ''}: {_row(rng, items)}"


_PLACES = (("first", 0), ("second", 1), ("third", 2), ("last", -1))


def _pick_one(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 3, 7)
    which, place = rng.choice(_PLACES)
    ask = choose(rng, f"{{What is the {which} word|Which word is the {which} one|Tell me the {which} item}}")
    question = f"{ask} in this list: {', '.join(items)}{'.' if ask.startswith('Tell') else '?'}"
    return _task(question, items[place], items[place])


def _after(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 3, 7)
    place = rng.randrange(len(items) - 1)
    behind = rng.random() < 0.6
    asked, answer = (items[place], items[place + 1]) if behind else (items[place + 1], items[place])
    word = "after" if behind else "before"
    question = (
        f"{choose(rng, '{Which word comes|What comes|What stands}')} {word} {asked} in this list: "
        f"{', '.join(items)}?"
    )
    return _task(question, answer, answer)


def _is_in(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 3, 7)
    asked = rng.choice(items)
    is_there = rng.random() < 0.5
    left = items if is_there else [item for item in items if item != asked]
    question = choose(rng, f"{{Is {asked} in this list|Does this list have {asked}}}: {', '.join(left)}?")
    reply = f"Yes, {asked} is in the list." if is_there else f"No, {asked} is not in the list."
    return _task(question, reply, "Yes" if is_there else "No")


def _extreme(rng: random.Random, split: Split) -> Task:
    if rng.random() < 0.5:
        numbers = _some_numbers(rng, split, 3, 6)
        which, answer = rng.choice((("biggest", max(numbers)), ("smallest", min(numbers))))
        return _task(f"Which of these numbers is the {which}? {_row(rng, numbers)}", str(answer), answer)
    while True:
        items = words.several(lambda: _letters_of(rng, split), rng.randint(3, 5))
        by_length = sorted(items, key=len)
        if len(by_length[-1]) > len(by_length[-2]):
            break
    return _task(f"Which of these words is the longest? {_row(rng, items)}", by_length[-1], by_length[-1])


def _make_list(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 2, 5)
    sentence = words.join(items)
    if rng.random() < 0.5:
        ask, shown = (
            "{Make a numbered list of|Number these}",
            "\n".join(f"{n}. {item}" for n, item in enumerate(items, 1)),
        )
    else:
        ask, shown = (
            "{Make a list with dashes of|Write as a list with dashes}",
            "\n".join(f"- {item}" for item in items),
        )
    return _task(f"{choose(rng, ask)}: {sentence}.", shown, shown)


def _odd_one_out(rng: random.Random, split: Split) -> Task:
    groups = {
        "animal": words.ANIMALS,
        "food": words.FOODS,
        "city": words.CITIES,
        "job": words.JOBS,
        "color": words.COLORS,
    }
    usual, other = rng.sample(list(groups), 2)
    items = words.several(
        lambda: words.pick(rng, split, groups[usual]), 1 if _is_small(groups[usual], split) else 3
    )
    odd = words.pick(rng, split, groups[other])
    while len(items) < 3:
        items.append(rng.choice([word for word in groups[usual] if word not in items]))
    row = [*items, odd]
    rng.shuffle(row)
    question = choose(
        rng, f"{{Which word does not fit|Which one is different|Find the odd one out}}: {', '.join(row)}?"
    )
    return _task(
        question.replace("out: ", "out: ").rstrip("?") + _end(question),
        f"{words.upper_first(odd)} does not fit, because it is not {words.a(usual)}.",
        odd,
    )


def _is_small(group: Sequence[str], split: Split) -> bool:
    return len(words.part(group, split)) < 3


def _end(question: str) -> str:
    return "." if question.startswith("Find") else "?"


_COUNTING: tuple[_TaskMaker, ...] = (
    _count_items,
    _count_items,
    _count_letters,
    _count_one_letter,
    _spell,
    _end_letters,
    _count_word,
    _count_up,
    _even_or_odd,
)
_LISTS: tuple[_TaskMaker, ...] = (
    _name_some,
    _name_some,
    _sort_numbers,
    _sort_words,
    _pick_one,
    _after,
    _is_in,
    _extreme,
    _make_list,
    _odd_one_out,
)


def _example(kind: str, makers: Sequence[_TaskMaker], rng: random.Random, split: Split) -> Example:
    """One to three questions; the last is the one that is checked."""
    tasks = [rng.choice(makers)(rng, split) for _ in range(rng.choice((1, 1, 2, 3)))]
    texts = [text for task in tasks for text in (task.question, task.reply)]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(kind=kind, turns=turns, expected=tasks[-1].expected)


def counting(rng: random.Random, split: Split) -> Example:
    return _example("counting", _COUNTING, rng, split)


def lists(rng: random.Random, split: Split) -> Example:
    return _example("lists", _LISTS, rng, split)


MAKERS: dict[str, Maker] = {"counting": counting, "lists": lists}
