"""Small sums, products, comparisons and word problems, answered by a short text that ends with the number."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_model.corpus import words
from demo_model.corpus.example import Example, Maker, Split
from demo_model.corpus.phrases import HELPERS, choose, exchange, some_system

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}


@dataclass(frozen=True)
class Sum:
    left: int
    sign: str
    right: int

    @property
    def result(self) -> int:
        return _OPERATIONS[self.sign](self.left, self.right)


@dataclass(frozen=True)
class Task:
    question: str
    reply: str
    """Ends with `answer`."""
    answer: int


def _draw_sum(rng: random.Random) -> Sum:
    sign = rng.choice("++--*/")
    if sign == "+":
        return Sum(_number(rng), "+", _number(rng))
    if sign == "-":
        high, low = sorted((_number(rng), _number(rng)), reverse=True)
        return Sum(high, "-", low)
    left, right = rng.randint(1, 12), rng.randint(1, 12)
    return Sum(left, "*", right) if sign == "*" else Sum(left * right, "/", right)


def _number(rng: random.Random) -> int:
    """Mostly small, as a tiny model can learn them."""
    return rng.randint(0, rng.choice((10, 20, 20, 50, 100)))


def some_sum(rng: random.Random, split: Split) -> Sum:
    while True:
        found = _draw_sum(rng)
        if words.belongs(split, found.left, found.sign, found.right):
            return found


_SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
_SIGNS = {"+": "+", "-": "-", "*": "{*|x}", "/": "/"}


def _bare(rng: random.Random, split: Split) -> Task:
    task = some_sum(rng, split)
    written = choose(rng, f"{task.left} {_SIGNS[task.sign]} {task.right}")
    spoken = f"{task.left} {_SPOKEN[task.sign]} {task.right}"
    shown = rng.choice((written, spoken))
    ask = (
        "{What is #?|Calculate #.|How much is #?|# = ?|# =|Compute #.|Please work out #.|Solve: #|Tell me #.}"
    )
    question = choose(rng, ask).replace("#", shown)
    reply = choose(rng, "{# = @|# is @.|The answer is @.|@|It is @.}")
    return Task(question, reply.replace("#", shown).replace("@", str(task.result)), task.result)


def _asked_in_words(rng: random.Random, split: Split) -> Task:
    task = some_sum(rng, split)
    left, right = task.left, task.right
    ask = {
        "+": f"{{What is the sum of {left} and {right}?|Add {left} and {right}.|Add {right} to {left}.}}",
        "-": f"{{Subtract {right} from {left}.|Take {right} away from {left}.|What is {left} less {right}?}}",
        "*": f"{{Multiply {left} by {right}.|What is the product of {left} and {right}?}}",
        "/": f"{{Divide {left} by {right}.|How many times does {right} go into {left}?}}",
    }[task.sign]
    reply = f"{left} {task.sign} {right} = {task.result}"
    return Task(choose(rng, ask), reply, task.result)


def _chain(rng: random.Random, split: Split) -> Task:
    while True:
        first, second, third = (rng.randint(1, 20) for _ in range(3))
        between = first + second
        if third <= between and words.belongs(split, first, second, third):
            break
    question = choose(rng, f"{{What is|Calculate}} {first} + {second} - {third}").replace(
        "Calculate", "Calculate:"
    )
    reply = f"{first} + {second} = {between}, and {between} - {third} = {between - third}"
    return Task(question + ("?" if question.startswith("W") else ""), reply, between - third)


def _compare(rng: random.Random, split: Split) -> Task:
    while True:
        numbers = [rng.randint(1, 200) for _ in range(rng.choice((2, 2, 3, 4)))]
        if len(set(numbers)) == len(numbers) and words.belongs(split, *numbers):
            break
    shown = words.join([str(number) for number in numbers], "or")
    bigger = rng.random() < 0.5
    answer = max(numbers) if bigger else min(numbers)
    two = len(numbers) == 2
    word = ("bigger" if bigger else "smaller") if two else ("biggest" if bigger else "smallest")
    question = choose(
        rng, f"{{Which number is {word}: {shown}?|Which is {word}, {shown}?|What is {word}, {shown}?}}"
    )
    of_all = f"Of {words.join([str(number) for number in numbers])}, the {word} is {answer}."
    return Task(question, rng.choice((f"The {word} number is {answer}.", str(answer), of_all)), answer)


def _next_one(rng: random.Random, split: Split) -> Task:
    while True:
        start, step = rng.randint(0, 40), rng.choice((1, 2, 2, 3, 4, 5, 5, 10))
        if words.belongs(split, start, step):
            break
    row = [start + step * place for place in range(rng.choice((3, 4)))]
    shown = ", ".join(map(str, row))
    question = choose(
        rng, f"{{What comes next: {shown}?|What is the next number? {shown}|Continue: {shown}}}"
    )
    answer = row[-1] + step
    return Task(
        question, rng.choice((f"The next number is {answer}.", str(answer), f"{shown}, {answer}")), answer
    )


def _double_or_half(rng: random.Random, split: Split) -> Task:
    while True:
        number, double = rng.randint(1, 50), rng.random() < 0.5
        if words.belongs(split, number, double):
            break
    if double:
        question, answer = choose(rng, f"{{What is twice {number}?|Double {number}.}}"), 2 * number
        return Task(question, f"Twice {number} is {answer}.", answer)
    question = choose(rng, f"{{What is half of {2 * number}?|Halve {2 * number}.}}")
    return Task(question, f"Half of {2 * number} is {number}.", number)


def _get_more(rng: random.Random, split: Split) -> Task:
    hero, task, noun = _persons_sum(rng, split, "+")
    friend = words.name(rng, split)
    had, more = _counted(task.left, noun), _counted(task.right, noun, more=True)
    he = hero.he
    event = choose(
        rng,
        f"{{{friend} gives {hero.him} {more}.|{he.capitalize()} finds {more}.|{he.capitalize()} buys {more}."
        f"|Then {he} gets {more}.}}",
    )
    return _story_task(rng, hero.name, he, f"{hero.name} has {had}. {event}", task, noun, "now")


def _give_away(rng: random.Random, split: Split) -> Task:
    hero, task, noun = _persons_sum(rng, split, "-")
    friend, he, some = words.name(rng, split), hero.he, str(task.right)
    event = choose(
        rng,
        f"{{{he.capitalize()} gives {some} to {friend}.|{he.capitalize()} loses {some} of them."
        f"|{he.capitalize()} sells {some} of them.|{friend} takes {some} of them.}}",
    )
    told = f"{hero.name} has {_counted(task.left, noun)}. {event}"
    return _story_task(rng, hero.name, he, told, task, noun, "left")


def _boxes(rng: random.Random, split: Split) -> Task:
    hero, task, noun = _persons_sum(rng, split, "*")
    box = rng.choice(("box", "bag", "basket", "jar"))
    told = (
        f"{hero.name} has {_counted(task.left, box)}. There are {_counted(task.right, noun)} in each {box}."
    )
    return _story_task(rng, hero.name, hero.he, told, task, noun, "in all")


def _shared_out(rng: random.Random, split: Split) -> Task:
    hero, task, noun = _persons_sum(rng, split, "/")
    many = words.plural(noun)
    told = f"{hero.name} shares {_counted(task.left, noun)} equally among {_counted(task.right, 'child')}."
    question = f"{told} How many {many} does each child get?"
    return Task(question, f"{task.left} / {task.right} = {task.result}", task.result)


_HANDY = words.TOYS + words.FRUIT + words.PAPERS + words.OUTDOORS + words.VEGETABLES


def _persons_sum(rng: random.Random, split: Split, sign: str) -> tuple[words.Person, Sum, str]:
    while True:
        task = some_sum(rng, split)
        if task.sign == sign and 2 <= task.left <= 60 and 2 <= task.right <= 60:
            return words.person(rng, split), task, words.pick(rng, split, _HANDY)


def _counted(number: int, noun: str, more: bool = False) -> str:
    count = words.count_of(number, noun)
    return count.replace(" ", " more ", 1) if more else count


def _story_task(rng: random.Random, name: str, he: str, told: str, task: Sum, noun: str, when: str) -> Task:
    who = rng.choice((name, he))
    question = f"{told} How many {words.plural(noun)} does {who} have {when}?"
    shown = f"{task.left} {task.sign} {task.right} = {task.result}"
    reply = rng.choice((shown, f"{shown}, so the answer is {task.result}."))
    return Task(question, reply, task.result)


_TASKS: tuple[tuple[Callable[[random.Random, Split], Task], int], ...] = (
    (_bare, 36),
    (_asked_in_words, 12),
    (_chain, 4),
    (_compare, 10),
    (_next_one, 5),
    (_double_or_half, 3),
    (_get_more, 10),
    (_give_away, 10),
    (_boxes, 5),
    (_shared_out, 5),
)


def _task(rng: random.Random, split: Split) -> Task:
    maker = rng.choices([task for task, _ in _TASKS], [weight for _, weight in _TASKS])[0]
    return maker(rng, split)


def arithmetic(rng: random.Random, split: Split) -> Example:
    """One to three questions; the last is the one that is checked."""
    tasks = [_task(rng, split) for _ in range(rng.choice((1, 1, 2, 3)))]
    texts = [text for task in tasks for text in (task.question, task.reply)]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(kind="arithmetic", turns=turns, expected={"answer": str(tasks[-1].answer)})


MAKERS: dict[str, Maker] = {"arithmetic": arithmetic}
