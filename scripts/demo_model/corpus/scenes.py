"""Kinds of facts about people, places and events, each with its sentences and its questions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_model.corpus import task_words, words
from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import chance
from demo_model.corpus.task_words import SMALL, city, clock, company, first_name, invented_name
from demo_model.corpus.words.listed import listed as words_of

Draw = Callable[[random.Random, Split], str]


@dataclass(frozen=True)
class FactKind:
    """Wordings with {name}, {he}, {him}, {his} and {v}, the value. The first of `told` is also the answer."""

    draw: Draw
    told: tuple[str, ...]
    asked: tuple[str, ...]
    """Questions whose answer is the value."""
    checked: str
    """A yes/no question."""
    who: str = ""
    """A question whose answer is the subject, where that is a person."""
    short: str = "{v}"
    """The shortest answer."""


def count(rng: random.Random, split: Split) -> str:
    number = rng.randint(2, 12)
    return SMALL[number] if chance(rng, 0.5) else str(number)


def number(low: int, high: int) -> Draw:
    return lambda rng, split: str(rng.randint(low, high))


def of(options: tuple[str, ...]) -> Draw:
    """From a short closed list."""
    return lambda rng, split: rng.choice(options)


ENOUGH = 30
"""A list this long has at least three held-out words, as many as one paragraph may need."""


def listed(options: tuple[str, ...]) -> Draw:
    """From a list, which is split if it is long enough."""
    if len(options) < ENOUGH:
        return of(options)
    return lambda rng, split: words.pick(rng, split, options)


def colored(rng: random.Random, split: Split) -> str:
    return words.a(f"{rng.choice(words.COLORS)} {task_words.thing(rng, split)}")


def things(rng: random.Random, split: Split) -> str:
    return f"{count(rng, split)} {words.plural(task_words.thing(rng, split))}"


def foods(rng: random.Random, split: Split) -> str:
    return f"{count(rng, split)} {words.plural(task_words.food(rng, split))}"


def a_job(rng: random.Random, split: Split) -> str:
    return words.a(task_words.job(rng, split))


def pet(rng: random.Random, split: Split) -> str:
    return f"{words.a(rng.choice(words.PETS))} called {invented_name(rng, split)}"


def the_spot(rng: random.Random, split: Split) -> str:
    return f"the {task_words.spot(rng, split)}"


def the_thing(rng: random.Random, split: Split) -> str:
    return f"the {task_words.thing(rng, split)}"


def a_time(rng: random.Random, split: Split) -> str:
    return clock(rng)


def morning(rng: random.Random, split: Split) -> str:
    return f"{rng.randint(5, 11)}{rng.choice(('', ':15', ':30', ':45'))} am"


def evening(rng: random.Random, split: Split) -> str:
    return f"{rng.randint(2, 11)}{rng.choice(('', ':15', ':30', ':45'))} pm"


def price(rng: random.Random, split: Split) -> str:
    return f"{rng.randint(2, 99)} {rng.choice(('dollars', 'euros', 'coins'))}"


LANGUAGES = (
    "French",
    "Spanish",
    "Italian",
    "German",
    "Greek",
    "Polish",
    "Dutch",
    "Danish",
    "Turkish",
    "Japanese",
)
HOBBIES = words_of(
    """
    playing chess, playing tennis, playing football, playing cards, playing the piano, playing the drums,
    painting horses, painting boats, painting flowers, collecting stamps, collecting coins, collecting shells,
    collecting old maps, reading poems, reading comics, reading long books, building kites,
    building model planes, building small boats, baking bread, baking pies, baking cookies, watching birds,
    watching films, watching the stars, growing roses, growing beans, growing tomatoes, riding horses, fishing
    """
)
JOYS = words_of(
    """
    {he} won a race, {he} got a letter, {he} passed a test, the sun is shining, {his} team won,
    {he} found a coin,
    {his} friend came to visit, {he} got a new job, the holidays begin, {he} learned to swim,
    {his} cat came back,
    {he} baked a good cake, {he} won a prize, {he} met an old friend, {his} garden is full of flowers
    """
)
DELAYS = words_of(
    """
    it rained all week, the hall was closed, the band was ill, the lights were broken, the road was blocked,
    there was a storm, the stage was not ready, the food came late, the keys were lost, the guests were late,
    there was no power, the tent fell down
    """
)
REASONS = tuple(
    f"{clause}"
    for clause in (
        "it was raining",
        "it was very cold",
        "it was too hot",
        "the bus was late",
        "the road was closed",
        "the shop was shut",
        "the train was full",
        "the lights went out",
        "{he} was tired",
        "{he} was ill",
        "{he} was hungry",
        "{he} had a headache",
        "{he} missed the bus",
        "{he} lost the key",
        "{he} forgot the time",
        "{he} had no money",
        "{his} bike was broken",
        "{his} shoes were wet",
        "{his} sister was ill",
        "{his} friend was late",
        "{he} wanted to rest",
        "{he} had to work",
        "there was no food left",
        "there was a storm",
    )
)
RIDES = ("by bus", "by train", "by car", "by bike", "by boat", "on foot", "by taxi", "by tram")
WEEKDAYS = tuple(f"on {day}" for day in words.DAYS)

PERSON = (
    FactKind(city, ("{name} lives in {v}.", "{his_} home is in {v}.", "{name} has a small house in {v}."),
             ("Where does {name} live?", "In which town does {name} live?", "Where is the home of {name}?"),
             "Does {name} live in {v}?", "Who lives in {v}?", "In {v}"),
    FactKind(a_job, ("{name} works as {v}.", "{name} is {v}.", "{his_} job is that of {v}."),
             ("What is the job of {name}?", "What does {name} work as?", "What does {name} do for a living?"),
             "Does {name} work as {v}?", "Who works as {v}?"),
    FactKind(company, ("{name} is employed by {v}.", "{name} has a post at {v}.", "{his_} employer is {v}."),
             ("Which company employs {name}?", "Who is the employer of {name}?"),
             "Is {name} employed by {v}?", "Who is employed by {v}?"),
    FactKind(colored, ("{name} has {v}.", "{name} owns {v}.", "In {his} room there is {v}."),
             ("What does {name} have?", "What does {name} own?"), "Does {name} have {v}?", "Who has {v}?"),
    FactKind(pet, ("{name} keeps {v}.", "{his_} pet is {v}.", "At home {he} takes care of {v}."),
             ("What pet does {name} keep?", "Which animal does {name} keep?"),
             "Does {name} keep {v}?", "Who keeps {v}?"),
    FactKind(things, ("{name} collected {v}.", "On a shelf {he} keeps {v}."),
             ("What did {name} collect?", "How many things did {name} collect, and what are they?"),
             "Did {name} collect {v}?", "Who collected {v}?"),
    FactKind(of(words.COLORS), ("The favorite color of {name} is {v}.",
                                "{name} likes {v} best of all colors.",
                                "{his_} favorite color is {v}."),
             ("What is the favorite color of {name}?", "Which color does {name} like best?"),
             "Is {v} the favorite color of {name}?"),
    FactKind(number(6, 90), ("{name} is {v} years old.", "{his_} age is {v}.",
                             "{name} turned {v} this year."),
             ("How old is {name}?", "What is the age of {name}?"), "Is {name} {v} years old?",
             "Who is {v} years old?"),
    FactKind(listed(LANGUAGES), ("{name} speaks {v}.", "{name} can speak {v}.", "At home {he} speaks {v}."),
             ("Which language does {name} speak?", "What language can {name} speak?"),
             "Does {name} speak {v}?", "Who speaks {v}?"),
    FactKind(listed(HOBBIES), ("{name} likes {v}.", "{name} enjoys {v}.", "{his_} hobby is {v}."),
             ("What is the hobby of {name}?", "What does {name} like to do?"),
             "Does {name} like {v}?", "Who likes {v}?"),
    FactKind(first_name, ("The best friend of {name} is {v}.", "{his_} best friend is {v}.",
                          "{name} has a best friend called {v}."),
             ("Who is the best friend of {name}?", "What is the name of the best friend of {name}?"),
             "Is {v} the best friend of {name}?"),
    FactKind(morning, ("{name} gets up at {v}.", "Every day {he} gets up at {v}."),
             ("When does {name} get up?", "At what time does {name} get up?"),
             "Does {name} get up at {v}?", "Who gets up at {v}?", "At {v}"),
    FactKind(listed(JOYS), ("{name} is happy today because {v}.", "Today {he} is happy because {v}."),
             ("Why is {name} happy?", "Why is {name} happy today?"), "Is {name} happy because {v}?", "",
             "Because {v}"),
)  # fmt: skip
OUTING = (
    FactKind(the_spot, ("{name} went to {v}.", "{name} walked to {v}.", "The trip took {him} to {v}."),
             ("Where did {name} go?", "To which place did {name} go?"), "Did {name} go to {v}?",
             "Who went to {v}?",
             "To {v}"),
    FactKind(of(WEEKDAYS), ("{name} left home {v}.", "{he_} set out {v}.", "It happened {v}."),
             ("When did {name} leave home?", "On which day did {name} leave home?"),
             "Did {name} leave home {v}?", "Who left home {v}?"),
    FactKind(of(RIDES), ("{name} traveled {v}.", "{he_} came {v}.", "The way was made {v}."),
             ("How did {name} travel?", "How did {name} get there?"), "Did {name} travel {v}?",
             "Who traveled {v}?"),
    FactKind(foods, ("{name} bought {v}.", "For dinner {he} bought {v}.", "At a stall {he} bought {v}."),
             ("What did {name} buy?", "How many things did {name} buy, and which?"),
             "Did {name} buy {v}?", "Who bought {v}?"),
    FactKind(price, ("{name} paid {v}.", "{he_} paid {v} for everything.", "It cost {him} {v}."),
             ("How much did {name} pay?", "What did {name} pay?"), "Did {name} pay {v}?", "Who paid {v}?"),
    FactKind(the_thing, ("{name} lost {v}.", "On the way {he} lost {v}.", "Sadly, {he} lost {v}."),
             ("What did {name} lose?", "Which thing did {name} lose?"), "Did {name} lose {v}?",
             "Who lost {v}?"),
    FactKind(colored, ("{name} found {v}.", "Near a wall {he} found {v}.", "Under a bench {he} found {v}."),
             ("What did {name} find?", "Which thing did {name} find?"), "Did {name} find {v}?",
             "Who found {v}?"),
    FactKind(first_name, ("{name} met {v}.", "On the way {he} met {v}.", "There {he} met {v}."),
             ("Whom did {name} meet?", "Who did {name} meet on the way?"), "Did {name} meet {v}?",
             "Who met {v}?"),
    FactKind(listed(REASONS), ("{name} came home early because {v}.", "{he_} went home early because {v}.",
                               "Because {v}, {he} came home early."),
             ("Why did {name} come home early?", "Why did {name} go home early?"),
             "Did {name} come home early because {v}?", "", "Because {v}"),
    FactKind(a_time, ("{name} came back at {v}.", "{he_} was home at {v}."),
             ("When did {name} come back?", "At what time did {name} come back?"),
             "Did {name} come back at {v}?", "Who came back at {v}?", "At {v}"),
)  # fmt: skip
PLACE = (
    FactKind(city, ("{name} is in {v}.", "You find {him} in {v}.", "{he_} stands in {v}."),
             ("Where is {name}?", "In which town is {name}?"), "Is {name} in {v}?", "", "In {v}"),
    FactKind(morning, ("{name} opens at {v}.", "{his_} doors open at {v}.", "Every day {he} opens at {v}."),
             ("When does {name} open?", "At what time does {name} open?"), "Does {name} open at {v}?", "",
             "At {v}"),
    FactKind(evening, ("{name} closes at {v}.", "In the evening {he} closes at {v}.",
                      "{his_} doors close at {v}."),
             ("When does {name} close?", "At what time does {name} close?"), "Does {name} close at {v}?", "",
             "At {v}"),
    FactKind(number(1600, 2020), ("{name} was built in {v}.", "{he_} dates from {v}.",
                                  "Workers built {him} in {v}."),
             ("When was {name} built?", "In which year was {name} built?"), "Was {name} built in {v}?", "",
             "In {v}"),
    FactKind(first_name, ("The owner of {name} is {v}.", "{he_} belongs to {v}.", "{his_} owner is {v}."),
             ("Who owns {name}?", "Who is the owner of {name}?"), "Does {name} belong to {v}?"),
    FactKind(price, ("A ticket for {name} costs {v}.", "The entry costs {v}.", "You pay {v} to get in."),
             ("How much is a ticket for {name}?", "What does a ticket for {name} cost?"),
             "Does a ticket for {name} cost {v}?"),
    FactKind(number(3, 90), ("{name} has {v} rooms.", "There are {v} rooms inside.",
                             "Inside, there are {v} rooms."),
             ("How many rooms does {name} have?", "How many rooms are in {name}?"),
             "Does {name} have {v} rooms?"),
    FactKind(of(words.COLORS), ("The roof of {name} is {v}.", "{his_} roof is {v}.", "The roof is {v}."),
             ("What color is the roof of {name}?", "Which color does the roof of {name} have?"),
             "Is the roof of {name} {v}?"),
    FactKind(colored, ("The sign of {name} shows {v}.", "On the sign there is {v}."),
             ("What does the sign of {name} show?", "What is on the sign of {name}?"),
             "Does the sign of {name} show {v}?"),
)  # fmt: skip
EVENT = (
    FactKind(the_spot, ("{name} takes place at {v}.", "People meet at {v}.", "{he_} is held at {v}."),
             ("Where does {name} take place?", "Where is {name}?"), "Does {name} take place at {v}?", "",
             "At {v}"),
    FactKind(of(WEEKDAYS), ("{name} is {v}.", "{he_} takes place {v}.", "{he_} will be {v}."),
             ("When is {name}?", "On which day is {name}?"), "Is {name} {v}?"),
    FactKind(a_time, ("{name} starts at {v}.", "{he_} begins at {v}.", "The doors open at {v}."),
             ("At what time does {name} start?", "At what time does {name} begin?"),
             "Does {name} start at {v}?", "",
             "At {v}"),
    FactKind(price, ("A ticket for {name} costs {v}.", "One ticket costs {v}.", "The price is {v}."),
             ("How much is a ticket for {name}?", "What does a ticket for {name} cost?"),
             "Does a ticket for {name} cost {v}?"),
    FactKind(number(12, 900), ("{v} people come to {name}.", "There are {v} guests.",
                               "{he_} has {v} guests."),
             ("How many people come to {name}?", "How many guests does {name} have?"),
             "Do {v} people come to {name}?"),
    FactKind(first_name, ("{v} organizes {name}.", "The host is {v}.", "{he_} is organized by {v}."),
             ("Who organizes {name}?", "Who is the host of {name}?"), "Does {v} organize {name}?"),
    FactKind(lambda rng, split: words.plural(task_words.food(rng, split)),
             ("The guests of {name} eat {v}.", "There are {v} to eat.", "Everyone gets {v} to eat."),
             ("What do the guests of {name} eat?", "What is there to eat at {name}?"),
             "Do the guests of {name} eat {v}?"),
    FactKind(listed(words.MUSIC), ("At {name} someone plays the {v}.", "Someone plays the {v}."),
             ("Which instrument is played at {name}?", "What does someone play at {name}?"),
             "Does someone play the {v} at {name}?", "", "The {v}"),
    FactKind(listed(DELAYS), ("{name} starts late because {v}.", "{he_} starts late because {v}."),
             ("Why does {name} start late?",), "Does {name} start late because {v}?", "", "Because {v}"),
)  # fmt: skip
