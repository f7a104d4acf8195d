"""Sentences on a topic, from small grammars."""

from __future__ import annotations

import random

from demo_model.corpus import task_words, words
from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import chance, one_of, sentence
from demo_model.corpus.task_words import SMALL, city, clock, company, first_name

TOPICS: dict[str, tuple[str, ...]] = {
    "sports": (
        "{name} [scored|shot] [a goal|{n} goals|the winning goal] [in the last minute|for {city}|against "
        "{city}]",
        "the [team|players|football team] from {city} [won|lost] the [match|game|final|cup] [{d} to {e}|"
        "again|at home]",
        "the [runner|swimmer|cyclist|champion] {name} won [a gold medal|the race|the tournament] in {city}",
        "our [coach|goalkeeper|captain] {name} [trained|practiced] [hard|every day] for the [race|match|"
        "marathon]",
        "the [tennis|basketball|hockey|volleyball] [match|game] [ended|was over] after {n} [hours|sets|"
        "rounds]",
    ),
    "food": (
        "{name} [cooked|made|tasted] a [soup|stew|salad|pie] with {food} and {food2}",
        "[fry|boil|bake|mix|chop] the {food} and add [some salt|a little butter|pepper|sugar|cream]",
        "the [recipe|dish|cake] needs {n} {food} and [flour|milk|butter|cheese|rice]",
        "the [restaurant|cook|chef|kitchen] in {city} serves [tasty|fresh|spicy|sweet] {food}",
        "for [breakfast|lunch|dinner] {name} [ate|had|cooked] {food} with [bread|cheese|rice|sauce]",
    ),
    "weather": (
        "[tomorrow|today|tonight] there will be [rain|snow|strong wind|fog|thunder|sunshine] in {city}",
        "a [storm|cold wind|heat wave|rain shower] [reaches|moves over|comes to] {city} [on {day}|tonight|in "
        "the evening]",
        "the [temperature|thermometer] in {city} [falls to|rises to|shows] {d} degrees",
        "[dark|gray|thick] clouds and [rain|snow|hail|fog] [over|in] {city} [all day|on {day}|this week]",
        "it [rained|snowed] for {n} [days|hours] and the [sky|air] [stayed|was] [gray|cold|wet]",
    ),
    "travel": (
        "{name} [flew|took a train|went by ship] to {city} and stayed in a [hotel|small hotel|guest house]",
        "our [flight|plane|train|ferry] to {city} [left|departed] at {time} from [gate|platform] {d}",
        "the [tourists|travelers|guests] [visited|toured] {city} with a [guide|map|bus]",
        "{name} packed a [suitcase|backpack|bag] and a passport for the [trip|journey|holiday] to {city}",
        "the [tour|cruise|bus trip] goes from {city} to {city2} [and back|in {n} days]",
    ),
    "music": (
        "{name} plays the {instrument} in [a band|an orchestra|a choir|a concert]",
        "the [singer|band|pianist|choir] {name} [sang|played|recorded] [a new song|{n} songs|an album] in "
        "{city}",
        "the [concert|opera|song|album] had a [slow|loud|lovely|fast] [melody|rhythm|tune] on the "
        "{instrument}",
        "{name} [wrote|composed|practiced] a [song|melody|tune] for {instrument} and [piano|drums|voice]",
    ),
    "money": (
        "the [bank|price|tax|bill] [rose|went up|fell|went down] [by {d} percent|to {d} dollars]",
        "{name} [saved|earned|borrowed|paid back] {d} [dollars|euros] [at the bank|from the bank|this month]",
        "{company} [sold|bought] [shares|its bank account|gold] for {d} [million|thousand] dollars",
        "the [loan|account|credit card|salary] of {name} [costs|is] {d} [dollars|euros] a [month|year]",
    ),
    "school": (
        "the [teacher|pupils|class|students] [wrote|finished|studied for] a [test|math test|lesson|homework]",
        "{name} did the [homework|math exercise|spelling test|reading lesson] [at school|for the teacher|in "
        "class]",
        "the [exam|lesson|class] with [teacher|professor] {name} [starts|ends] at {time}",
        "{name} got [a good grade|a bad grade|full marks] in [math|history|biology|geography|spelling]",
    ),
    "animals": (
        "the {animal} [slept|hid|ate|played] next to [a|the] {animal2} [in the nest|in the stable|in its "
        "cage|in the grass]",
        "the [wild|young|hungry|old] {animal} [hunts|eats|feeds|follows] [its young|the other animals] with "
        "its [paws|beak|teeth|tail]",
        "{name} [feeds|brushes|strokes] the [fur|feathers|back] of the {animal}",
        "the [vet|zoo keeper] [looked after|fed|washed] the {animal} and its [young|babies|tail|fur]",
    ),
    "health": (
        "the [doctor|nurse|dentist] gave {name} [a pill|some medicine|an injection] for the [cough|fever|"
        "toothache|pain]",
        "{name} has [a fever|a cold|a sore throat|a broken arm] and [went to the hospital|stays in bed|needs "
        "a doctor]",
        "the [hospital|clinic] in {city} [treats|has] {d} patients with [flu|fever|broken bones]",
        "[sleep|vitamins|exercise|rest] [helps|is good] against [stress|headaches|colds|the flu]",
    ),
    "computers": (
        "the [program|computer|laptop|server] of {name} [crashed|started again|has a virus|needs an update]",
        "{name} [wrote|tested|fixed] [a program|some code|a bug|a website] for {company}",
        "the [keyboard|hard disk|screen|software] of the computer [is broken|stopped|is new]",
        "type the [password|command|code] and [click|press] the [button|key] on the [screen|website]",
    ),
}  # fmt: skip


def on_topic(rng: random.Random, split: Split, topic: str) -> str:
    """One or two sentences."""
    first = one_of(rng, TOPICS[topic], **values(rng, split))
    if chance(rng, 0.7):
        return sentence(first)
    return f"{sentence(first)} {sentence(one_of(rng, TOPICS[topic], **values(rng, split)))}"


def values(rng: random.Random, split: Split) -> dict[str, object]:
    cities = words.several(lambda: city(rng, split), 2)
    foods = words.several(lambda: words.plural(task_words.food(rng, split)), 2)
    animals = words.several(lambda: task_words.animal(rng, split), 2)
    return {
        "name": first_name(rng, split),
        "city": cities[0], "city2": cities[1], "food": foods[0], "food2": foods[1],
        "animal": animals[0], "animal2": animals[1], "n": SMALL[rng.randint(2, 12)], "d": rng.randint(2, 99),
        "e": rng.randint(0, 9), "day": rng.choice(words.DAYS), "time": clock(rng),
        "company": company(rng, split),
        "instrument": words.pick(rng, split, words.MUSIC),
    }  # fmt: skip
