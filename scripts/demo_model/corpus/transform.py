"""Repeats and changes a given text; the answer is the exact text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_model.corpus import words
from demo_model.corpus.example import Example, Maker, Split
from demo_model.corpus.phrases import HELPERS, choose, exchange, some_system
from demo_model.corpus.sentences import Clause, clause


@dataclass(frozen=True)
class Task:
    question: str
    answer: str


def _some_text(rng: random.Random, split: Split) -> str:
    """A sentence, words, or a code."""
    kind = rng.random()
    if kind < 0.5:
        return clause(rng, split).past() if rng.random() < 0.5 else clause(rng, split).present()
    if kind < 0.8:
        return " ".join(words.of_one_sort(rng, split, 1, 6))
    if kind < 0.9:
        return _code(rng, split)
    return " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(3, 7)))


def _code(rng: random.Random, split: Split) -> str:
    while True:
        letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.randint(2, 4)))
        code = f"{letters}{rng.choice(('-', '', '_'))}{rng.randint(10, 9999)}"
        if words.belongs(split, code):
            return code


_MARKS = ('"#"', "'#'", "#", "#")


def _quoted(rng: random.Random, text: str) -> str:
    return rng.choice(_MARKS).replace("#", text)


def _repeat(rng: random.Random, split: Split) -> Task:
    text = _some_text(rng, split)
    ask = (
        "{Repeat|Say|Please repeat|Copy|Repeat exactly|Write exactly|Repeat after me|Echo this|Copy "
        "this text}"
    )
    return Task(f"{choose(rng, ask)}: {_quoted(rng, text)}", text)


def _repeat_often(rng: random.Random, split: Split) -> Task:
    word, times = rng.choice((words.name, words.thing, words.invented_word))(rng, split), rng.randint(2, 5)
    ask = f"{{Write|Say|Repeat}} {word} {{{times}|{words.NUMBERS[times]}}} times."
    return Task(choose(rng, ask), " ".join([word] * times))


def _upper(rng: random.Random, split: Split) -> Task:
    text = _some_text(rng, split)
    ask = (
        "{Write in capital letters|Write in upper case|Convert to upper case|Make it all "
        "capitals|Upper case, please}"
    )
    return Task(f"{choose(rng, ask)}: {_quoted(rng, text)}", text.upper())


def _lower(rng: random.Random, split: Split) -> Task:
    text = _some_text(rng, split)
    shown = text.upper() if rng.random() < 0.6 else text
    ask = (
        "{Write in small letters|Write in lower case|Convert to lower case|Make it all lower "
        "case|Lower case, please}"
    )
    return Task(f"{choose(rng, ask)}: {_quoted(rng, shown)}", text.lower())


def _title(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 1, 4)
    ask = "{Start each word with a capital letter|Capitalize each word|Write each word with a capital}"
    text = " ".join(items).lower()
    return Task(f"{choose(rng, ask)}: {text}", " ".join(word.capitalize() for word in text.split(" ")))


def _reverse(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 2, 5)
    comma = rng.choice((", ", " ")) if all(" " not in item for item in items) else ", "
    ask = (
        "{Reverse the order of these words|Reverse this list|Write these words in reverse order|Turn "
        "this list around}"
    )
    return Task(f"{choose(rng, ask)}: {comma.join(items)}", comma.join(reversed(items)))


def _replace(rng: random.Random, split: Split) -> Task:
    said = clause(rng, split)
    new = words.several(lambda: words.name(rng, split), 1, [said.subject])[0]
    old_text = said.past()
    swap = rng.random() < 0.5
    old, fresh = (
        (said.subject, new)
        if swap
        else (said.noun, words.several(lambda: words.thing(rng, split), 1, [said.noun])[0])
    )
    ask = choose(rng, f"{{Replace {old} with {fresh}|Change {old} to {fresh}|Put {fresh} in place of {old}}}")
    answer = said.with_subject(fresh).past() if swap else said.with_noun(fresh).past()
    return Task(f"{ask}: {old_text}", answer)


def _remove(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 3, 6)
    gone = rng.choice(items)
    left = [item for item in items if item != gone]
    ask = f"{{Remove {gone} from this list|Take {gone} out of the list|Delete {gone}|Leave out {gone}}}"
    return Task(f"{choose(rng, ask)}: {', '.join(items)}", ", ".join(left))


def _append(rng: random.Random, split: Split) -> Task:
    *items, new = words.of_one_sort(rng, split, 3, 6)
    ask, answer = rng.choice(
        (
            (f"{{Add {new} to the end of|Put {new} at the end of|Add {new} to}}", [*items, new]),
            (f"{{Add {new} to the start of|Put {new} at the beginning of}}", [new, *items]),
        )
    )
    return Task(
        f"{choose(rng, ask)} {{this list}}: {', '.join(items)}".replace("{this list}", "this list"),
        ", ".join(answer),
    )


def _join(rng: random.Random, split: Split) -> Task:
    items = words.of_one_sort(rng, split, 2, 5)
    if rng.random() < 0.5:
        return Task(f"Join these words with 'and': {', '.join(items)}", " and ".join(items))
    mark = rng.choice(("-", "/", "+", " - ", "; "))
    return Task(f"Join these words with '{mark}': {', '.join(items)}", mark.join(items))


_GRAMMAR: tuple[tuple[str, Callable[[Clause], str], Callable[[Clause], str]], ...] = (
    (
        "{Put into the past|Write in the past tense|Change to the past tense|Say it in the past}",
        Clause.present,
        Clause.past,
    ),
    (
        "{Put into the present|Write in the present tense|Change to the present tense|Say it in the present}",
        Clause.past,
        Clause.present,
    ),
    (
        "{Put into the future|Write in the future tense|Change to the future tense|Say it with will}",
        Clause.present,
        Clause.future,
    ),
    (
        "{Make it negative|Say the opposite with not|Turn into a negative sentence|Write it with not}",
        Clause.present,
        Clause.negative,
    ),
    (
        "{Make it a question|Turn into a question|Write it as a question|Ask if this is so}",
        Clause.present,
        Clause.question,
    ),
    ("{Make it negative|Turn into a negative sentence|Write it with not}", Clause.past, Clause.past_negative),
    ("{Make it a question|Turn into a question|Write it as a question}", Clause.past, Clause.past_question),
    (
        "{Write it in capital letters and in the past|Past tense, capital letters}",
        Clause.present,
        lambda said: said.past().upper(),
    ),
)


def _change_sentence(rng: random.Random, split: Split) -> Task:
    ask, before, after = rng.choice(_GRAMMAR)
    said = clause(rng, split)
    return Task(f"{choose(rng, ask)}: {before(said)}", after(said))


def _plural(rng: random.Random, split: Split) -> Task:
    noun = rng.choice((words.thing, words.animal, words.food, words.job))(rng, split)
    if rng.random() < 0.3:
        ask = "{What is one of # called?|Give the singular of #.|What is the singular of #?}"
        return Task(choose(rng, ask).replace("#", words.plural(noun)), noun)
    ask = (
        "{What is the plural of #?|Give the plural of #.|Plural of #?|One #, two ...?|Write # in the plural.}"
    )
    return Task(choose(rng, ask).replace("#", noun), words.plural(noun))


def _article(rng: random.Random, split: Split) -> Task:
    adjective = rng.choice(("", "", "old ", "new ", "orange ", "small ", "ugly ", "red "))
    noun = adjective + rng.choice((words.thing, words.animal, words.food, words.job))(rng, split)
    ask = "{A or an: #|Put a or an before: #|Write with a or an: #|Which article, a or an? #}"
    return Task(choose(rng, ask).replace("#", noun), words.a(noun))


def _fill_blank(rng: random.Random, split: Split) -> Task:
    """The missing word stands in the prompt."""
    said = clause(rng, split)
    other = words.several(lambda: words.thing(rng, split), 1, [said.noun])[0]
    pair = [said.noun, other]
    rng.shuffle(pair)
    fact = said.past()
    place = fact.rindex(said.noun)
    gap = f"{fact[:place]}___{fact[place + len(said.noun) :]}"
    ask = choose(rng, "{Fill in the blank|Complete the second sentence|Which word is missing}")
    return Task(f"{ask}. {fact} {gap}", said.noun)


def _longest_line(rng: random.Random, split: Split) -> Task:
    while True:
        lines = words.several(lambda: _line(rng, split), rng.randint(3, 4))
        order = sorted(lines, key=len)
        if len(order[-1]) >= len(order[-2]) + 6 and len(order[1]) >= len(order[0]) + 6:
            break
    which, answer = rng.choice(
        (("longest", order[-1]), ("shortest", order[0]), ("first", lines[0]), ("last", lines[-1]))
    )
    ask = choose(
        rng,
        (
            f"{{Write only the {which} line|Give me the {which} line|Which line is the {which} one? "
            f"Copy it|Copy the {which} line}}"
        ),
    )
    return Task("\n".join((f"{ask}:", *lines)), answer)


def _line(rng: random.Random, split: Split) -> str:
    said = clause(rng, split)
    return rng.choice(
        (said.present(), said.past(), f"{said.subject} {words.third(said.verb)}.", f"{said.subject}!")
    )


def _first_word(rng: random.Random, split: Split) -> Task:
    said = clause(rng, split).past()
    all_words = said.rstrip(".").split(" ")
    which, answer = rng.choice((("first", all_words[0]), ("second", all_words[1]), ("last", all_words[-1])))
    ask = (
        f"{{What is the {which} word of this sentence?|Write the {which} word:|Give me only the "
        f"{which} word:}}"
    )
    return Task(f"{choose(rng, ask)} {said}", answer)


_TASKS: tuple[tuple[Callable[[random.Random, Split], Task], int], ...] = (
    (_repeat, 20),
    (_repeat_often, 4),
    (_upper, 8),
    (_lower, 7),
    (_title, 4),
    (_reverse, 8),
    (_replace, 9),
    (_remove, 7),
    (_append, 5),
    (_join, 4),
    (_change_sentence, 20),
    (_plural, 6),
    (_article, 3),
    (_fill_blank, 4),
    (_longest_line, 6),
    (_first_word, 5),
)


def transform(rng: random.Random, split: Split) -> Example:
    """One or two tasks; the last is the one that is checked."""
    makers, weights = [maker for maker, _ in _TASKS], [weight for _, weight in _TASKS]
    tasks = [maker(rng, split) for maker in rng.choices(makers, weights, k=rng.choice((1, 1, 2)))]
    texts = [text for task in tasks for text in (task.question, task.answer)]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(kind="transform", turns=turns, expected={"answer": tasks[-1].answer})


MAKERS: dict[str, Maker] = {"transform": transform}
