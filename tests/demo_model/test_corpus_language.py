"""The half of the corpus that teaches language and skills: what the makers promise, checked on many draws."""

from __future__ import annotations

import random
import re

import pytest
from demo_model.corpus import arithmetic, lists, plain, smalltalk, stories, transform, words
from demo_model.corpus.example import Example, Maker, Role, Split
from demo_model.corpus.stories import telling
from demo_model.corpus.stories.cast import Cast

MAKERS: dict[str, Maker] = {
    kind: maker
    for module in (stories, arithmetic, lists, transform, smalltalk, plain)
    for kind, maker in module.MAKERS.items()
}
LEAST_DIFFERENT = {"identity": 0.8, "facts": 0.95, "counting": 0.9, "smalltalk": 0.9, "arithmetic": 0.9}
"""The share of different documents among 2,000; of the other kinds, 97 in 100."""


def draw(kind: str, count: int, split: Split = Split.TRAIN, seed: int = 7) -> list[Example]:
    generator = random.Random(seed)
    return [MAKERS[kind](generator, split) for _ in range(count)]


def answer_of(example: Example) -> str:
    return example.turns[-1].text


def text_of(example: Example) -> str:
    return example.text if example.text is not None else "\n".join(turn.text for turn in example.turns)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_seed_writes_the_same_examples(kind: str) -> None:
    assert draw(kind, 50) == draw(kind, 50)
    assert draw(kind, 50) != draw(kind, 50, seed=8)


@pytest.mark.parametrize("kind", MAKERS)
def test_an_example_is_a_document_of_its_kind(kind: str) -> None:
    for example in draw(kind, 200):
        assert example.kind == kind
        if example.text is None:
            roles = [turn.role for turn in example.turns if turn.role is not Role.SYSTEM]
            assert roles == [Role.USER, Role.ASSISTANT] * (len(roles) // 2)
            assert all(turn.text == turn.text.strip() != "" for turn in example.turns)
            assert example.expected


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("split", list(Split))
def test_the_texts_are_clean(kind: str, split: Split) -> None:
    """No double spaces, no unfilled slots or choices, no doubled stops, and a or an as it should be."""
    for example in draw(kind, 300, split):
        text = text_of(example)
        assert not re.search(r"  | [.,!]|\.\.(?!\.)|[{}|\[\]]|[.!?]\"\.", text.replace("two ...?", "")), text
        if kind not in NAMES_LETTERS:
            assert not wrong_articles(text), text


NAMES_LETTERS = ("counting", "transform")
"""There "a" may be the letter itself, or "an" the word that is asked for."""


def wrong_articles(text: str) -> list[str]:
    found = re.findall(r"(?<![\w'-])([Aa]n?) ([a-z]+)", text)
    return [f"{article} {word}" for article, word in found if words.a(word) != f"{article.lower()} {word}"]


@pytest.mark.parametrize("kind", MAKERS)
def test_almost_no_document_comes_twice(kind: str) -> None:
    texts = [text_of(example) for example in draw(kind, 2000)]
    assert len(set(texts)) >= LEAST_DIFFERENT.get(kind, 0.97) * len(texts)


def test_held_out_names_are_never_in_training() -> None:
    held_out = set(words.part(words.GIRLS, Split.HELD_OUT) + words.part(words.BOYS, Split.HELD_OUT))
    shared = {"April", "Violet", "June", "Pip", "Daisy", "Luna", "Olive"}
    for kind in MAKERS:
        for example in draw(kind, 300):
            seen = set(re.findall(r"[A-Z][a-z]+", text_of(example)))
            assert not (seen & held_out) - shared, text_of(example)


def test_a_words_list_is_split_into_two_parts() -> None:
    generator = random.Random(1)
    for size in (10, 19, 20, 101):
        numbers = [str(number) for number in range(size)]
        train = {words.pick(generator, Split.TRAIN, numbers) for _ in range(size * 60)}
        held_out = {words.pick(generator, Split.HELD_OUT, numbers) for _ in range(size * 60)}
        assert train == set(words.part(numbers, Split.TRAIN))
        assert held_out == set(words.part(numbers, Split.HELD_OUT))
        assert train | held_out == set(numbers)


def test_invented_names_belong_to_one_split() -> None:
    generator = random.Random(1)
    train = {words.invented_name(generator, Split.TRAIN) for _ in range(2000)}
    held_out = {words.invented_name(generator, Split.HELD_OUT) for _ in range(2000)}
    assert not train & held_out
    assert not (train | held_out) & set(words.NAMES)


@pytest.mark.parametrize(
    ("noun", "article", "many"),
    [("apple", "an apple", "apples"), ("box", "a box", "boxes"), ("goose", "a goose", "geese"),
     ("hour", "an hour", "hours"), ("unicorn", "a unicorn", "unicorns"),
     ("toy story", "a toy story", "toy stories")],
)  # fmt: skip
def test_articles_and_plurals(noun: str, article: str, many: str) -> None:
    assert words.a(noun) == article
    assert words.plural(noun) == many


@pytest.mark.parametrize("split", list(Split))
def test_a_story_keeps_its_names_and_its_length(split: Split) -> None:
    for example in draw("stories", 500, split):
        story = answer_of(example)
        least, most = example.expected["words"]  # type: ignore[misc]
        assert least <= len(story.split()) <= most, story
        assert all(name in story for name in example.expected["names"]), story  # type: ignore[attr-defined]
        assert str(example.expected["topic"]) in example.turns[-2].text


def test_no_story_says_a_sentence_twice() -> None:
    for example in draw("story_plain", 500):
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", str(example.text))
        assert len(set(sentences)) == len(sentences), example.text


def test_every_plot_can_be_told_with_every_word_of_it() -> None:
    """All beats of all plots, with each choice taken at least once: every slot is known."""
    generator = random.Random(3)
    assert len(telling.PLOTS) >= 25
    assert len({plot.name for plot in telling.PLOTS}) == len(telling.PLOTS)
    for plot in telling.PLOTS:
        for text in (*plot.topics, plot.title, *(beat.text for beat in plot.beats)):
            flat = re.sub(r"[{}|]", " ", text)
            assert "[" not in Cast(generator, Split.TRAIN, plot.groups).fill(flat)


def test_every_plot_is_told_at_every_length() -> None:
    for least, most in ((0, 65), (50, 70), (86, 114), (130, 170)):
        generator = random.Random(5)
        told = {telling.tell(generator, Split.TRAIN, least, most).plot for _ in range(1500)}
        assert len(told) >= len(telling.PLOTS) - 3


def test_arithmetic_answers_end_with_the_right_number() -> None:
    for example in draw("arithmetic", 2000) + draw("arithmetic", 500, Split.HELD_OUT):
        assert re.findall(r"\d+", answer_of(example))[-1] == example.expected["answer"]


def test_arithmetic_is_right_when_computed_again() -> None:
    """Every equation that an answer writes, and every question that is one."""
    seen = 0
    for example in draw("arithmetic", 2000):
        text = answer_of(example)
        for left, sign, right, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", text):
            assert computed(left, sign, right) == int(result), text
            seen += 1
        asked = re.search(
            r"(?<![+-] )\b(\d+) ([-+*/]|plus|minus|times|divided by) (\d+)(?: \?|\?|\.| =|$)",
            example.turns[-2].text,
        )
        if asked and "In all" not in text:
            assert str(computed(*asked.groups())) == example.expected["answer"], text
            seen += 1
    assert seen > 1000


def computed(left: str, sign: str, right: str) -> int:
    spoken = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}.get(sign, sign)
    first, second = int(left), int(right)
    if spoken == "/":
        assert first % second == 0
        return first // second
    return {"+": first + second, "-": first - second, "*": first * second}[spoken]


def test_word_problems_ask_for_what_is_told() -> None:
    for example in draw("arithmetic", 3000):
        asked = example.turns[-2].text
        told = [int(number) for number in re.findall(r"\d+", asked)]
        if "How many" in asked and " left?" in asked:
            assert told[0] - told[1] == int(str(example.expected["answer"])), asked
        elif "How many" in asked and " now?" in asked:
            assert told[0] + told[1] == int(str(example.expected["answer"])), asked


def test_the_answer_of_a_transform_is_exact() -> None:
    for example in draw("transform", 300):
        assert answer_of(example) == example.expected["answer"]


def test_sorting_counting_and_spelling_are_right() -> None:
    for example in draw("lists", 2000) + draw("counting", 2000):
        asked, answer = example.turns[-2].text, answer_of(example)
        if asked.startswith(("Sort these numbers", "Put in order these numbers")):
            numbers = [int(number) for number in re.findall(r"\d+", asked)]
            down = "big to small" in asked or "falling" in asked
            assert answer == ", ".join(map(str, sorted(numbers, reverse=down)))
        if asked.startswith("Spell the word "):
            assert answer.replace("-", "") == asked.removeprefix("Spell the word ").rstrip(".")
        if asked.startswith("Count the items: "):
            assert example.expected["answer"] == str(asked.count(",") + 1)
            assert str(example.expected["answer"]) in answer


def test_named_members_are_different_and_as_many_as_asked() -> None:
    seen = 0
    for example in draw("lists", 2000):
        if "count" in example.expected:
            members = re.split(r", |\n", answer_of(example))
            assert len(set(members)) == len(members) == example.expected["count"]
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("kind", ["smalltalk", "identity", "refusal"])
def test_talk_holds_what_is_expected(kind: str) -> None:
    for example in draw(kind, 500):
        assert all(part in answer_of(example) for part in example.expected["contains"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind not in ("story_plain", "plain")])
def test_conversations_are_short_enough_for_a_window(kind: str) -> None:
    assert all(len(text_of(example).split()) <= 260 for example in draw(kind, 300))
