"""Remembering: the user tells a few facts over several turns, talks of other things, then asks."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_model.corpus import task_words, words
from demo_model.corpus.example import Example, Maker, Split, Turn
from demo_model.corpus.phrasing import assistant, capital, chance, one_of, system, user
from demo_model.corpus.scenes import HOBBIES, Draw, listed
from demo_model.corpus.task_words import city, clock, company, date, first_name, invented_name, phone, street


@dataclass(frozen=True)
class Memory:
    """Wordings around {v}, from the user's side, and the answer from the assistant's."""

    draw: Draw
    told: tuple[str, ...]
    reply: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str
    system: str
    """The same fact about "the user"."""


def number(rng: random.Random, split: Split) -> str:
    return str(rng.randint(2, 99)) if chance(rng, 0.5) else str(rng.randint(100, 99999))


def code(rng: random.Random, split: Split) -> str:
    return (
        f"{invented_name(rng, split)}{rng.randint(1, 99)}"
        if chance(rng, 0.5)
        else words.invented_word(rng, split)
    )


def a_pet(rng: random.Random, split: Split) -> str:
    return f"a {rng.choice(('cat', 'dog', 'rabbit', 'parrot', 'hamster', 'turtle', 'pony', 'goldfish'))}"


def pet_name(rng: random.Random, split: Split) -> str:
    return invented_name(rng, split) if chance(rng, 0.6) else first_name(rng, split)


def dish(rng: random.Random, split: Split) -> str:
    return words.plural(task_words.food(rng, split))


def hiding_place(rng: random.Random, split: Split) -> str:
    return f"{rng.choice(('under', 'behind', 'next to'))} the {words.pick(rng, split, words.HOUSE)}"


OK = ("Okay.", "Good to know.", "Thank you for telling me.", "I will remember that.", "Noted.", "All right.")
MEMORIES = (
    Memory(first_name, ("My name is {v}.", "I am called {v}.", "[Hi|Hello], I am {v}.",
                        "You can call me {v}."),
           ("Nice to meet you, {v}.", "Hello, {v}.", "Hi {v}."),
           ("What is my name?", "Do you remember my name?", "What am I called?", "Who am I?"),
           "Your name is {v}.", "The name of the user is {v}."),
    Memory(city, ("I live in {v}.", "My home is in {v}.", "I come from {v}."),
           (*OK, "{v} sounds nice.", "I hope you like {v}."),
           ("Where do I live?", "Which city do I live in?", "Where is my home?"),
           "You live in {v}.", "The user lives in {v}."),
    Memory(lambda rng, split: rng.choice(words.COLORS), ("My favorite color is {v}.",
                                                         "I like the color {v} best."),
           (*OK, "{v_} is a nice color."), ("What is my favorite color?", "Which color do I like best?"),
           "Your favorite color is {v}.", "The favorite color of the user is {v}."),
    Memory(a_pet, ("I have {v}.", "My pet is {v}.", "At home I keep {v}."), (*OK, "That is a lovely pet."),
           ("What pet do I have?", "Which animal do I have?"), "You have {v}.", "The user has {v} as a pet."),
    Memory(pet_name, ("My [pet|animal] is called {v}.", "The name of my pet is {v}."),
           (*OK, "{v} is a good name."),
           ("What is my pet called?", "What is the name of my pet?"),
           "Your pet is called {v}.", "The pet of the user is called {v}."),
    Memory(number, ("My lucky number is {v}.", "Remember the number {v}.", "Please remember my number: {v}."),
           (*OK, "I will remember {v}."), ("What is my number?", "Which number did I tell you?"),
           "Your number is {v}.", "The number of the user is {v}."),
    Memory(code, ("The password is {v}.", "The secret word is {v}.", "Remember the word {v}."),
           (*OK, "I will remember {v}."), ("What is the word?", "Which word did I tell you?",
                                           "What was the word?"),
           "The word is {v}.", "The secret word is {v}."),
    Memory(task_words.job, ("I work as a_{v}.", "My job is that of a_{v}."), (*OK, "That is a good job."),
           ("What is my job?", "What do I work as?"), "You work as a_{v}.", "The user works as a_{v}."),
    Memory(company, ("I work for {v}.", "My company is {v}."), OK, ("Which company do I work for?",
                                                                    "Who do I work for?"),
           "You work for {v}.", "The user works for {v}."),
    Memory(first_name, ("My sister is called {v}.", "The name of my sister is {v}.", "I have a sister, {v}."),
           OK,
           ("What is my sister called?", "What is the name of my sister?"),
           "Your sister is called {v}.", "The sister of the user is called {v}."),
    Memory(first_name, ("My brother is called {v}.", "The name of my brother is {v}.",
                        "I have a brother, {v}."), OK,
           ("What is my brother called?", "What is the name of my brother?"),
           "Your brother is called {v}.", "The brother of the user is called {v}."),
    Memory(first_name, ("My best friend is {v}.", "I have a best friend called {v}."),
           (*OK, "{v} must be very kind."),
           ("Who is my best friend?", "What is the name of my best friend?"),
           "Your best friend is {v}.", "The best friend of the user is {v}."),
    Memory(dish, ("My favorite food is {v}.", "I love to eat {v}."), (*OK, "{v_} are tasty."),
           ("What is my favorite food?", "What do I love to eat?"),
           "Your favorite food is {v}.", "The favorite food of the user is {v}."),
    Memory(listed(HOBBIES), ("My hobby is {v}.", "I enjoy {v}.", "I like {v}."),
           (*OK, "That sounds like fun."),
           ("What is my hobby?", "What do I enjoy?"), "Your hobby is {v}.", "The hobby of the user is {v}."),
    Memory(lambda rng, split: str(rng.randint(6, 90)), ("I am {v} years old.", "My age is {v}."), OK,
           ("How old am I?", "What is my age?"), "You are {v} years old.", "The user is {v} years old."),
    Memory(lambda rng, split: date(rng), ("My birthday is {v}.", "I was born on {v}."),
           (*OK, "I will think of it."),
           ("When is my birthday?", "What is the date of my birthday?"),
           "Your birthday is {v}.", "The birthday of the user is {v}."),
    Memory(lambda rng, split: clock(rng), ("My train leaves at {v}.", "I have to catch the train at {v}."),
           (*OK, "Do not be late."), ("When does my train leave?", "At what time is my train?"),
           "Your train leaves at {v}.", "The train of the user leaves at {v}."),
    Memory(lambda rng, split: phone(rng), ("My phone number is {v}.", "You can call me at {v}."), OK,
           ("What is my phone number?", "Which phone number do I have?"),
           "Your phone number is {v}.", "The phone number of the user is {v}."),
    Memory(street, ("My address is {v}.", "You can send letters to {v}."), OK, ("What is my address?",),
           "Your address is {v}.", "The address of the user is {v}."),
    Memory(hiding_place, ("I put the key {v}.", "My key is {v}."), OK, ("Where is my key?",
                                                                        "Where did I put the key?"),
           "Your key is {v}.", "The key of the user is {v}."),
    Memory(city, ("Tomorrow I travel to {v}.", "Next week I want to go to {v}.", "I plan a trip to {v}."),
           (*OK, "Have a good trip to {v}."), ("Where do I want to go?", "Where do I want to travel?"),
           "You want to go to {v}.", "The user wants to travel to {v}."),
)  # fmt: skip
SMALL_TALK = (
    ("[How are you|How are you today|How do you do]?", "I am fine, thank you."),
    ("[Thank you|Thanks|Thanks a lot].", "You are welcome."),
    ("[Nice weather|It is a nice day|What a lovely day], is it not?", "Yes, it is a good day."),
    ("Are you [a robot|a person|human]?", "I am a tiny demo model."),
    ("Can you help me[ later|]?", "Yes, I will try."),
    ("[Say|Please say] {word}.", "{word_}."),
    ("What is {one} plus {two}?", "{one} plus {two} is {sum}."),
    ("I [saw|met] {name} [today|yesterday|in the park].", "I hope {name} is well."),
    ("I am [a bit|very] [tired|hungry|bored] today.", "I am sorry to hear that."),
    ("[Good morning|Good evening|Hello].", "Hello. How can I help you?"),
    ("Today I bought {food}.", "That sounds good."),
)
CHANGES = ("That was wrong.", "Sorry, I made a mistake.", "That has changed.")
ASKING = ("{q}", "{q}", "{q}", "[Do you still know|Now tell me|Tell me|One question]: {lower}", "So, {lower}",
          "[And|Now], {lower}", "[Please answer|Quick question]: {lower}")  # fmt: skip


@dataclass(frozen=True)
class Told:
    memory: Memory
    value: str

    def said(self, wording: str) -> str:
        """With "a_{v}" for the value with its article."""
        wording = wording.replace("a_{v}", words.a(self.value))
        return wording.format(v=self.value, v_=capital(self.value))


def make(rng: random.Random, split: Split) -> Example:
    told = [Told(memory, memory.draw(rng, split)) for memory in rng.sample(MEMORIES, rng.randint(2, 5))]
    known = told[:1] if chance(rng, 0.1) else []
    turns = [system(" ".join(one.said(one.memory.system) for one in known))] if known else []
    turns += telling(rng, split, [one for one in told if one not in known])
    asked = rng.sample(told, rng.choice((1, 1, 2)))
    if chance(rng, 0.08):
        turns += changed(rng, split, asked)
    for one in asked:
        turns += question(rng, one)
    return Example("recall", tuple(turns), expected={"answer": asked[-1].value})


def telling(rng: random.Random, split: Split, told: list[Told]) -> list[Turn]:
    """One or two facts a turn, small talk in between."""
    turns: list[Turn] = []
    rest = list(told)
    while rest:
        together, rest = (rest[:2], rest[2:]) if chance(rng, 0.25) else (rest[:1], rest[1:])
        said = " ".join(one_of(rng, (one.said(rng.choice(one.memory.told)),)) for one in together)
        turns += [user(said), assistant(reply(rng, together))]
        turns += small_talk(rng, split) if chance(rng, 0.35) else []
    return turns


def reply(rng: random.Random, told: list[Told]) -> str:
    return rng.choice(OK) if len(told) > 1 else told[0].said(rng.choice(told[0].memory.reply))


def small_talk(rng: random.Random, split: Split) -> list[Turn]:
    said, answered = rng.choice(SMALL_TALK)
    one, two = rng.randint(1, 9), rng.randint(1, 9)
    word = words.invented_word(rng, split) if chance(rng, 0.5) else task_words.thing(rng, split)
    values = {"one": one, "two": two, "sum": one + two, "name": first_name(rng, split), "word": word,
              "word_": capital(word), "food": words.plural(task_words.food(rng, split))}  # fmt: skip
    return [user(one_of(rng, (said,), **values)), assistant(one_of(rng, (answered,), **values))]


def changed(rng: random.Random, split: Split, asked: list[Told]) -> list[Turn]:
    """The last fact asked for gets a new value, which counts."""
    new = Told(
        asked[-1].memory, words.several(lambda: asked[-1].memory.draw(rng, split), 1, [asked[-1].value])[0]
    )
    asked[-1] = new
    said = one_of(rng, (new.said(new.memory.told[0]),))
    return [user(f"{rng.choice(CHANGES)} {said}"), assistant(rng.choice(OK))]


def question(rng: random.Random, told: Told) -> list[Turn]:
    asked = rng.choice(told.memory.asked)
    said = one_of(rng, ASKING, q=asked, lower=asked[0].lower() + asked[1:])
    return [user(said), assistant(told.said(told.memory.answer))]


MAKERS: dict[str, Maker] = {"recall": make}
