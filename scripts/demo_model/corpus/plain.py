"""Plain texts: descriptions, how-tos, diary pages, lists, dialogues, letters, notices."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from demo_model.corpus import words
from demo_model.corpus.example import Example, Maker, Split
from demo_model.corpus.knowledge import question
from demo_model.corpus.phrases import choose
from demo_model.corpus.sentences import clause
from demo_model.corpus.stories.cast import in_spot

_MakeText = Callable[[random.Random, Split], str]


def _some(rng: random.Random, lines: Sequence[str], least: int) -> str:
    """At least `least` of the lines, in their order, each with its choices made."""
    count = rng.randint(least, len(lines))
    places = sorted(rng.sample(range(len(lines)), count))
    return " ".join(choose(rng, lines[place]) for place in places)


def _town(rng: random.Random, split: Split) -> str:
    town, river, person = words.town(rng, split), words.invented_name(rng, split), words.full_name(rng, split)
    spots = words.several(lambda: words.spot(rng, split), 2)
    trees = words.plural(rng.choice(words.TREES))
    job = words.plural(words.job(rng, split))
    number = rng.randint(2, 90) * 100
    lines = (
        (
            f"{town} is a {{small|quiet|friendly|pretty|lively|busy}} town {{on the river "
            f"{river}|near the sea|in the hills|in a valley}}."
        ),
        f"About {number} people live there.",
        (
            f"{{Many of them are {job}.|It is known for its {trees}.|In {rng.choice(words.SEASONS)}, "
            f"it is full of visitors.}}"
        ),
        f"In the middle of the town {{there is|you find}} {words.a(spots[0])}.",
        (
            f"The {spots[1]} is {{old, but well kept|open every day|a good place to rest|loved by "
            f"children|{rng.randint(20, 400)} years old}}."
        ),
        (
            f"Every {rng.choice(words.DAYS)} there is a market with "
            f"{words.plural(words.food(rng, split))} and {words.plural(words.thing(rng, split))}."
        ),
        f"The mayor is called {person}.",
        (
            f"{{A train goes to {words.city(rng, split)} every hour.|The bus to "
            f"{words.city(rng, split)} takes {rng.randint(10, 90)} minutes.}}"
        ),
    )
    return _some(rng, lines, 4)


def _person_text(rng: random.Random, split: Split) -> str:
    who, friend = words.person(rng, split), words.name(rng, split)
    he, his, surname = who.he, who.his, words.surname(rng, split)
    animal = words.pick(rng, split, words.PETS)
    foods = [words.plural(words.food(rng, split)) for _ in range(2)]
    traits = rng.sample(words.KIND_TRAITS, 3)
    job = words.a(words.job(rng, split))
    lines = (
        (
            f"{who.name} {surname} is "
            f"{{{words.a(str(rng.randint(20, 79)))}-year-old|{words.a(traits[0])}}} {{man|woman}} "
            f"from {words.city(rng, split)}."
        ).replace("{man|woman}", "woman" if he == "she" else "man"),
        f"{he.capitalize()} {{works as|is}} {job}.",
        f"{who.name} is {traits[1]} and {traits[2]}.",
        (
            f"{his.capitalize()} favorite color is {rng.choice(words.COLORS)}, and {he} likes "
            f"{words.join(sorted(set(foods)))}."
        ),
        f"{he.capitalize()} has {words.a(animal)} {{called|named}} {words.invented_name(rng, split)}.",
        (
            f"On {rng.choice(words.DAYS)}, {he} {{meets|visits|goes swimming with|plays chess with}} "
            f"{his} friend {friend}."
        ),
        f"One day {he} wants to {{travel to|see|live in}} {words.country(rng, split)}.",
        f"{his.capitalize()} {{house|flat}} is {{near|not far from}} the {words.spot(rng, split)}.",
    )
    return choose(rng, lines[0]) + " " + _some(rng, lines[1:], 3)


def _thing_text(rng: random.Random, split: Split) -> str:
    thing, owner = words.thing(rng, split), words.person(rng, split)
    color, second = rng.sample(words.COLORS, 2)
    lines = (
        f"{owner.name} {{has|owns|keeps}} {words.a(f'{color} {thing}')}.",
        (
            f"It is {{made of wood|made of metal|made by hand|not very big|quite heavy|very "
            f"light}}{{| and {rng.randint(2, 80)} years old}}."
        ),
        (
            f"{{On one side there is a {{small|big}} {second} {{spot|star|line|flower}}.|It has a "
            f"thin {second} {{line|edge}}.}}"
        ),
        (
            f"{owner.name} {{found it {in_spot(words.spot(rng, split))}|bought it in "
            f"{words.city(rng, split)}|got it from {words.name(rng, split)}}}."
        ),
        f"It cost {{only |}}{rng.randint(2, 90)} {{coins|euros|dollars}}.",
        (
            f"{owner.he.capitalize()} {{keeps it {{on a shelf|in a box|in the kitchen|next to the "
            f"bed|under the stairs}}|uses it every {rng.choice(words.DAYS)}|would never sell it}}."
        ),
    )
    return choose(rng, lines[0]) + " " + _some(rng, lines[1:], 3)


_HOW_TOS = (
    (
        "make a salad with [foods]",
        "Wash the [foods].",
        "Cut the [foods] into small pieces.",
        "Put everything into a bowl.",
        "Add a little oil and salt.",
        "Mix it well.",
        "Serve it cold.",
    ),
    (
        "plant [trees]",
        "Find a sunny place.",
        "Dig a deep hole.",
        "Put the young tree into the hole.",
        "Fill it with earth.",
        "Give it a bucket of water.",
        "Wait a few years.",
    ),
    (
        "wrap [a_thing]",
        "Take a large sheet of [color] paper.",
        "Put the [thing] in the middle.",
        "Fold the paper over it.",
        "Close it with tape.",
        "Tie some [color2] ribbon around it.",
        "Write a name on it.",
    ),
    (
        "paint [a_thing]",
        "Clean the [thing] first.",
        "Cover the floor with old paper.",
        "Mix the [color] paint.",
        "Paint slowly from top to bottom.",
        "Let it dry for [n] hours.",
        "Paint a second time.",
    ),
    (
        "draw [a_animal]",
        "Begin with a circle for the head.",
        "Draw a bigger shape for the body.",
        "Add the legs.",
        "Draw two eyes and a mouth.",
        "Color it [color].",
        "Sign your picture.",
    ),
    (
        "write a letter to [name]",
        "Take a sheet of paper.",
        "Write the date at the top.",
        "Begin with: Dear [name].",
        "Tell about your week in [city].",
        "End with your name.",
        "Put it into an envelope and add a stamp.",
    ),
    (
        "clean the [spot]",
        "Open the windows.",
        "Pick up what lies around.",
        "Sweep the floor.",
        "Wipe the tables with a wet cloth.",
        "Take out the trash.",
        "Close the windows again.",
    ),
    (
        "find a lost [thing]",
        "Think about when you saw it last.",
        "Look under the bed.",
        "Look in all your bags.",
        "Ask [name].",
        "Go back to the [spot].",
        "Do not give up.",
    ),
    (
        "make [food] soup",
        "Cut one [food] and one onion.",
        "Boil [n] cups of water.",
        "Put everything into the pot.",
        "Cook it for [n] minutes.",
        "Add salt.",
        "Eat it warm.",
    ),
    (
        "go to [city] by train",
        "Look up the time of the train.",
        "Buy a ticket.",
        "Pack your bag and some [foods].",
        "Be at the station [n] minutes early.",
        "Find your seat.",
        "Get off in [city].",
    ),
    (
        "make [a_thing] from paper",
        "Take [n] sheets of [color] paper.",
        "Fold them in the middle.",
        "Cut along the line.",
        "Glue the parts together.",
        "Let the glue dry.",
        "Paint it [color2].",
    ),
    (
        "look after [a_pet]",
        "Give it fresh water every day.",
        "Feed it in the morning.",
        "Clean its place on [day].",
        "Play with it for [n] minutes.",
        "Keep it warm at night.",
        "See a vet once a year.",
    ),
)


def _slots(rng: random.Random, split: Split) -> dict[str, str]:
    thing, food, color = words.thing(rng, split), words.food(rng, split), rng.sample(words.COLORS, 2)
    return {
        "[foods]": words.plural(food),
        "[food]": food,
        "[trees]": words.a(rng.choice(words.TREES)) + " tree",
        "[a_thing]": words.a(thing),
        "[thing]": thing,
        "[color]": color[0],
        "[color2]": color[1],
        "[a_animal]": words.a(words.animal(rng, split)),
        "[a_pet]": words.a(words.pick(rng, split, words.PETS)),
        "[name]": words.name(rng, split),
        "[city]": words.city(rng, split),
        "[spot]": words.spot(rng, split),
        "[day]": rng.choice(words.DAYS),
        "[n]": str(rng.randint(2, 30)),
    }


def _how_to(rng: random.Random, split: Split) -> str:
    goal, *steps = rng.choice(_HOW_TOS)
    dropped = rng.randrange(len(steps) + 1)
    kept = [step for place, step in enumerate(steps) if place != dropped]
    shapes = (
        "\n".join((f"How to {goal}", *(f"{n}. {step}" for n, step in enumerate(kept, 1)))),
        "\n".join((f"How to {goal}:", *(f"- {step}" for step in kept))),
        f"How to {goal}\n\n{' '.join(kept)}",
    )
    text = rng.choice(shapes)
    for slot, word in _slots(rng, split).items():
        text = text.replace(slot, word)
    return text


def _diary(rng: random.Random, split: Split) -> str:
    friend, city, thing = words.name(rng, split), words.city(rng, split), words.thing(rng, split)
    head = f"{rng.choice(words.DAYS)}, {rng.randint(1, 28)} {rng.choice(words.MONTHS)}"
    lines = (
        f"{{Today was|It was}} {words.a(rng.choice(words.WEATHER))} day in {city}.",
        (
            f"I got up {{early|late|at {rng.randint(5, 11)}}} and {{ate|had}} "
            f"{words.a(words.food(rng, split))} for breakfast."
        ),
        (
            f"{{Then|After that}} I {{met|visited|called|wrote to}} {friend}, who was "
            f"{rng.choice(words.GOOD_FEELINGS + words.BAD_FEELINGS)}."
        ),
        (
            f"We {{walked|went}} {{to|past}} the {words.spot(rng, split)} and {{saw|talked about}} "
            f"{words.a(words.animal(rng, split))}."
        ),
        f"{friend} {{gave me|showed me|asked me for}} {words.a(thing)}.",
        (
            f"{{At noon|In the afternoon}} I {{read a book|cleaned my room|cooked soup|played the "
            f"{rng.choice(words.MUSIC)}|slept for an hour}}."
        ),
        f"In the evening I was {rng.choice(words.GOOD_FEELINGS)}.",
        (
            f"Tomorrow I {{want to|will}} {{go to {words.city(rng, split)}|learn something new|see "
            f"{friend} again|stay at home}}."
        ),
    )
    return f"{head}\n\n{choose(rng, lines[0])} {_some(rng, lines[1:3], 2)} {_some(rng, lines[3:], 2)}"


def _shopping(rng: random.Random, split: Split) -> str:
    heading = choose(
        rng,
        (
            f"{{Shopping list for {words.name(rng, split)}|To buy on {rng.choice(words.DAYS)}|We "
            f"need for {words.name(rng, split)}'s birthday}}"
        ),
    )
    items = words.several(
        lambda: (words.food if rng.random() < 0.7 else words.thing)(rng, split), rng.randint(3, 7)
    )
    lines = [f"- {words.count_of(rng.randint(1, 12), item)}" for item in items]
    return "\n".join((f"{heading}:", *lines))


def _letter(rng: random.Random, split: Split) -> str:
    writer, reader = words.names(rng, split, 2)
    thing, city = words.thing(rng, split), words.city(rng, split)
    lines = (
        (
            f"{{How are you|I hope you are well}} in {city}{{?|, and I hope the weather is "
            f"{rng.choice(words.WEATHER)}.}}"
        ),
        (
            f"{{Thank you for the {rng.choice(words.COLORS)} {thing}.|I am sending you "
            f"{words.a(thing)}.|I have found your {thing}.}}"
        ),
        (
            f"{{Last|This}} {rng.choice(words.DAYS)} I {{met|saw}} {words.name(rng, split)} "
            f"{in_spot(words.spot(rng, split))}."
        ),
        (
            f"We {{talked about you|ate {words.plural(words.food(rng, split))}|played the "
            f"{rng.choice(words.MUSIC)}}}."
        ),
        (
            f"Please {{write soon|visit me in {rng.choice(words.MONTHS)}|tell me about your "
            f"{words.pick(rng, split, words.PETS)}}}."
        ),
    )
    greeting, closing = (
        choose(rng, "{Dear|Hello|My dear}"),
        choose(rng, "{Your friend|Love|Best wishes|Yours}"),
    )
    body = _some(rng, lines, 3).replace("in " + city + "?", f"in {city}?")
    return f"{greeting} {reader},\n\n{body}\n\n{closing},\n{writer}"


def _dialogue(rng: random.Random, split: Split) -> str:
    first, second = words.names(rng, split, 2)
    thing, spot, day = words.thing(rng, split), words.spot(rng, split), rng.choice(words.DAYS)
    parts = (
        (
            f"Have you seen my {rng.choice(words.COLORS)} {thing}?",
            (
                f"{{Yes, it is {in_spot(spot)}.|No, when did you lose it?|I think "
                f"{words.name(rng, split)} has it.}}"
            ),
        ),
        (
            f"{{Shall we go to the {spot} on {day}?|Do you have time on {day}?}}",
            (
                f"{{Yes, gladly.|No, I must work on {day}.|Yes, but only in the "
                f"{rng.choice(words.DAY_TIMES)}.}}"
            ),
        ),
        (
            "What did you eat today?",
            f"I had {words.a(words.food(rng, split))} and {words.a(words.food(rng, split))}.",
        ),
        (
            f"How much is the {words.thing(rng, split)}?",
            f"It costs {rng.randint(2, 99)} {{coins|euros|dollars}}.",
        ),
        (
            "{Where do you come from?|Where is your family?}",
            (
                f"{{We are from {words.city(rng, split)}.|From {words.city(rng, split)}, near the "
                f"{words.spot(rng, split)}.}}"
            ),
        ),
        (
            (
                f"Did you hear that {words.name(rng, split)} has "
                f"{words.a(words.pick(rng, split, words.PETS))} now?"
            ),
            "{No! What is its name?|Yes, it is very small.|Really? How nice!}",
        ),
        question(rng, split),
    )
    lines = [
        f"{first}: {{Hello|Good morning|Hi}}, {second}!",
        f"{second}: {{Hello|Good morning|Hi}}, {first}! {{Nice to see you.|}}",
    ]
    for asked, answer in rng.sample(parts, rng.randint(1, 3)):
        lines += [f"{first}: {asked}", f"{second}: {answer}"]
    lines += [f"{first}: {{Thank you, {second}.|See you soon!|I must go now. Goodbye!}}"]
    return "\n".join(choose(rng, line).rstrip() for line in lines)


def _fact_lines(rng: random.Random, split: Split) -> str:
    pairs = [question(rng, split) for _ in range(rng.randint(4, 8))]
    if rng.random() < 0.5:
        return "\n".join(f"Question: {asked}\nAnswer: {answer}" for asked, answer in pairs)
    return (
        " ".join(words.upper_first(answer.rstrip(".")) + "." for _, answer in pairs if " " in answer)
        or pairs[0][1]
    )


def _clauses(rng: random.Random, split: Split) -> str:
    said = [clause(rng, split) for _ in range(rng.randint(3, 6))]
    told = rng.random() < 0.6
    return " ".join(one.past() if told else one.present() for one in said)


def _notice(rng: random.Random, split: Split) -> str:
    spot, town, name = words.spot(rng, split), words.town(rng, split), words.name(rng, split)
    thing, day = words.thing(rng, split), rng.choice(words.DAYS)
    color = rng.choice(words.COLORS)
    texts = (
        (
            f"Lost: {words.a(f'{color} {thing}')}, last seen {in_spot(spot)} in {town}. {{Please "
            f"call|If you find it, ask for}} {name}. {{Thank you!|There is a reward of "
            f"{rng.randint(2, 50)} coins.}}"
        ),
        (
            f"For sale: {words.a(f'{color} {thing}')}, {{nearly new|old but good|used twice}}, for "
            f"{rng.randint(2, 90)} coins. Ask {name} {in_spot(spot)}."
        ),
        (
            f"On {day} at {rng.randint(8, 20)}:{rng.choice(('00', '15', '30', '45'))}, {{a concert|a "
            f"market|a race|a feast}} takes place {in_spot(spot)} in {town}. {{Bring "
            f"{words.plural(words.food(rng, split))}!|Everyone is welcome.|Tickets cost "
            f"{rng.randint(1, 30)} coins.}}"
        ),
        (
            f"The {spot} in {town} is closed {{on {day}|until {rng.choice(words.MONTHS)}|for "
            f"repairs}}. {{Questions? Ask {name}.|We are sorry.|Please use the other one.}}"
        ),
    )
    return choose(rng, rng.choice(texts))


_TEXTS: tuple[_MakeText, ...] = (
    _town,
    _person_text,
    _thing_text,
    _how_to,
    _diary,
    _shopping,
    _letter,
    _dialogue,
    _dialogue,
    _fact_lines,
    _clauses,
    _notice,
)


def plain(rng: random.Random, split: Split) -> Example:
    """One short text, or two of them one after the other."""
    text = rng.choice(_TEXTS)(rng, split)
    return Example(kind="plain", text=text)


MAKERS: dict[str, Maker] = {"plain": plain}
