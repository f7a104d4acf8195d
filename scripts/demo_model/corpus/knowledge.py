"""Simple true facts about the world, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from demo_model.corpus import words
from demo_model.corpus.example import Example, Split
from demo_model.corpus.phrases import HELPERS, choose, exchange, some_system


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (entry.split(":") for entry in " ".join(text.split()).split(";"))
    return tuple((left.strip(), right.strip()) for left, right in pairs)


_CAPITALS = _pairs(
    """
    France: Paris; England: London; Germany: Berlin; Spain: Madrid; Italy: Rome; Austria: Vienna;
    Portugal: Lisbon; Norway: Oslo; Sweden: Stockholm; Finland: Helsinki; Denmark: Copenhagen; Ireland:
    Dublin; Belgium: Brussels; Poland: Warsaw; Hungary: Budapest; Greece: Athens; Switzerland: Bern;
    Canada: Ottawa; Peru: Lima; Cuba: Havana; Japan: Tokyo; China: Beijing; South Korea: Seoul; Thailand:
    Bangkok; Vietnam: Hanoi; Egypt: Cairo; Kenya: Nairobi; Morocco: Rabat; Ghana: Accra; Australia:
    Canberra; New Zealand: Wellington; Iceland: Reykjavik; Turkey: Ankara; Chile: Santiago; Croatia:
    Zagreb; Serbia: Belgrade; Romania: Bucharest; Bulgaria: Sofia; Latvia: Riga
    """
)
_SOUNDS = _pairs(
    """
    dog: barks; cat: meows; cow: moos; sheep: bleats; horse: neighs; duck: quacks; lion: roars; frog:
    croaks; owl: hoots; bee: buzzes; wolf: howls; rooster: crows; snake: hisses; mouse: squeaks; bird:
    sings; donkey: brays
    """
)
_LEGS = _pairs(
    """
    dog: 4; cat: 4; horse: 4; cow: 4; bird: 2; duck: 2; spider: 8; ant: 6; bee: 6; fly: 6; snake: 0;
    octopus: 8; human: 2; elephant: 4; frog: 4; butterfly: 6; chicken: 2; crab: 10; snail: 0; fish: 0;
    lion: 4; beetle: 6
    """
)
_YOUNG = _pairs(
    """
    dog: puppy; cat: kitten; cow: calf; horse: foal; sheep: lamb; goat: kid; bear: cub; lion: cub; duck:
    duckling; hen: chick; frog: tadpole; swan: cygnet; deer: fawn; pig: piglet; fox: cub; owl: owlet;
    seal: pup; kangaroo: joey
    """
)
_OPPOSITES = _pairs(
    """
    big: small; hot: cold; up: down; old: new; fast: slow; day: night; happy: sad; light: dark; high: low;
    long: short; open: closed; full: empty; hard: soft; loud: quiet; wet: dry; left: right; strong: weak;
    early: late; rich: poor; clean: dirty; first: last; begin: end; win: lose; love: hate; summer: winter;
    inside: outside; thick: thin; near: far; easy: difficult; black: white; good: bad; young: old; heavy:
    light; buy: sell; true: false
    """
)
_HUES = _pairs(
    """
    the sky on a clear day: blue; grass: green; snow: white; a ripe banana: yellow; a tomato: red; coal:
    black; an orange: orange; a lemon: yellow; milk: white; the sun at noon: yellow; a carrot: orange; an
    elephant: gray; chocolate: brown; blood: red; a polar bear: white; a strawberry: red; a flamingo:
    pink; a cucumber: green
    """
)
_HOMES = _pairs(
    """
    fish: in water; bird: in a nest; bee: in a hive; fox: in a den; bear: in the forest; camel: in the
    desert; whale: in the sea; penguin: in the cold south; mole: under the ground; horse: in a stable;
    spider: in a web; monkey: in the jungle; frog: near water; squirrel: in trees; lion: in Africa;
    kangaroo: in Australia; panda: in China; rabbit: in a burrow; owl: in trees; crab: at the beach; ant:
    in an anthill; beaver: in a lodge
    """
)
_USES = _pairs(
    """
    hammer: driving nails; saw: cutting wood; umbrella: staying dry in the rain; clock: telling the time;
    knife: cutting; spoon: eating soup; broom: sweeping the floor; key: opening a lock; map: finding the
    way; pen: writing; needle: sewing; lamp: making light; bed: sleeping; oven: baking; boat: crossing
    water; ladder: climbing up; bucket: carrying water; scissors: cutting paper; compass: finding north;
    kettle: boiling water; phone: calling people; thermometer: measuring the temperature; shovel: digging;
    camera: taking photos; mirror: seeing yourself; towel: drying yourself; pillow: resting your head
    """
)
_MAKERS = _pairs(
    """
    bread: baker; shoes: shoemaker; houses: builder; pictures: painter; songs: musician; food in a
    restaurant: cook; clothes: tailor; tables and chairs: carpenter; books: writer; pots of clay: potter;
    photos: photographer
    """
)
_PLAIN = _pairs(
    """
    {How many days are in a week|How many days does a week have}?: A week has seven days.; {How many
    months are in a year|How many months does a year have}?: A year has twelve months.; {How many hours
    are in a day|How many hours does a day have}?: A day has 24 hours.; {How many minutes are in an
    hour|How many minutes does an hour have}?: An hour has 60 minutes.; {How many seconds are in a
    minute|How many seconds does a minute have}?: A minute has 60 seconds.; {How many days are in a
    year|How many days does a year have}?: A year has 365 days, and 366 in a leap year.; {What do bees
    make|What comes from bees}?: Bees make honey.; {What is ice|What is ice made of}?: Ice is frozen
    water.; {Where does the sun rise|In which direction does the sun rise}?: The sun rises in the east.;
    {Where does the sun set|In which direction does the sun set}?: The sun sets in the west.; {What do
    plants need|What does a plant need to grow}?: Plants need water, light and air.; {What do cows give
    us|What comes from cows}?: Cows give us milk.; {What is the biggest animal|Which animal is the biggest
    of all}?: The blue whale is the biggest animal.; {What is the tallest animal|Which animal is the
    tallest}?: The giraffe is the tallest animal.; {What is the fastest land animal|Which animal runs
    fastest}?: The cheetah is the fastest land animal.; {How many colors does a rainbow have|How many
    colors are in a rainbow}?: A rainbow has seven colors.; {What does the moon go around|What does the
    moon circle}?: The moon goes around the earth.; {What does the earth go around|What does the earth
    circle}?: The earth goes around the sun.; {When does water freeze|At what temperature does water
    freeze}?: Water freezes at 0 degrees Celsius.; {When does water boil|At what temperature does water
    boil}?: Water boils at 100 degrees Celsius.; {What is bread made of|What do you need for bread}?:
    Bread is made of flour, water, salt and yeast.; {Where does wool come from|What animal gives wool}?:
    Wool comes from sheep.; {Where do eggs come from|Which animal lays the eggs we eat}?: The eggs we eat
    come from hens.; {How many wheels does a bike have|How many wheels are on a bike}?: A bike has two
    wheels.; {How many sides does a triangle have|How many corners does a triangle have}?: A triangle has
    three.; {How many sides does a square have|How many corners does a square have}?: A square has four.;
    {What is the opposite of north|Which direction is opposite to north}?: The opposite of north is
    south.; {What is the coldest season|Which season is the coldest}?: Winter is the coldest season.;
    {What is the hottest season|Which season is the warmest}?: Summer is the warmest season.
    """
)


def _capital(rng: random.Random) -> tuple[str, str]:
    country, capital = rng.choice(_CAPITALS)
    if rng.random() < 0.25:
        return choose(
            rng, f"{{{capital} is the capital of which country?|Of which country is {capital} the capital?}}"
        ), (f"{capital} is the capital of {country}.")
    ask = (
        f"{{What is the capital of {country}?|Which city is the capital of {country}?|Capital of {country}?}}"
    )
    return choose(rng, ask), choose(
        rng, f"{{The capital of {country} is {capital}.|{capital} is the capital of {country}.}}"
    )


def _sound(rng: random.Random) -> tuple[str, str]:
    animal, sound = rng.choice(_SOUNDS)
    what = words.a(animal)
    ask = (
        f"{{What sound does {what} make?|What does {what} do when it makes a sound?|Which sound "
        f"comes from {what}?}}"
    )
    return choose(rng, ask), f"{words.upper_first(what)} {sound}."


def _legs(rng: random.Random) -> tuple[str, str]:
    animal, legs = rng.choice(_LEGS)
    what = words.a(animal)
    ask = f"{{How many legs does {what} have?|How many legs has {what}?|Tell me how many legs {what} has.}}"
    count = {"0": "no legs", "8": "eight arms" if animal == "octopus" else "eight legs"}
    shown = count.get(legs, f"{words.NUMBERS[int(legs)]} legs")
    return choose(rng, ask), f"{words.upper_first(what)} has {shown}."


def _young(rng: random.Random) -> tuple[str, str]:
    animal, young = rng.choice(_YOUNG)
    ask = (
        f"{{What is a young {animal} called?|What do you call a baby {animal}?|What is the name for "
        f"a young {animal}?}}"
    )
    return choose(rng, ask), f"A young {animal} is called {words.a(young)}."


def _opposite(rng: random.Random) -> tuple[str, str]:
    word, other = rng.choice(_OPPOSITES)
    ask = (
        f"{{What is the opposite of {word}?|Give the opposite of {word}.|Opposite of {word}?|What is "
        f"the contrary of {word}?}}"
    )
    return choose(rng, ask), choose(rng, f"{{The opposite of {word} is {other}.|{other}}}")


def _hue(rng: random.Random) -> tuple[str, str]:
    what, hue = rng.choice(_HUES)
    ask = f"{{What color is {what}?|Which color does {what} have?|What is the color of {what}?}}"
    return choose(rng, ask), f"{words.upper_first(what)} is {hue}."


def _home(rng: random.Random) -> tuple[str, str]:
    animal, home = rng.choice(_HOMES)
    what = words.a(animal)
    ask = f"{{Where does {what} live?|Where is the home of {what}?|Where can I find {what}?}}"
    return choose(rng, ask), f"{words.upper_first(what)} lives {home}."


def _use(rng: random.Random) -> tuple[str, str]:
    tool, use = rng.choice(_USES)
    if tool == "scissors":
        return choose(
            rng, "{What are scissors for?|What do I need scissors for?}"
        ), f"Scissors are for {use}."
    what = words.a(tool)
    ask = (
        f"{{What is {what} for?|What is {what} used for?|What can I do with {what}?|What do I need "
        f"{what} for?}}"
    )
    return choose(rng, ask), f"{words.upper_first(what)} is for {use}."


def _who_makes(rng: random.Random) -> tuple[str, str]:
    work, maker = rng.choice(_MAKERS)
    return choose(rng, f"{{Who makes {work}?|What is someone called who makes {work}?}}"), (
        f"{words.upper_first(words.a(maker))} makes {work}."
    )


def _calendar(rng: random.Random) -> tuple[str, str]:
    names, what = rng.choice(((words.DAYS, "day"), (words.MONTHS, "month"), (words.SEASONS, "season")))
    place = rng.randrange(len(names))
    if rng.random() < 0.5:
        return f"Which {what} comes after {names[place]}?", (
            f"{words.upper_first(names[(place + 1) % len(names)])} comes after {names[place]}."
        )
    return f"Which {what} comes before {names[place]}?", (
        f"{words.upper_first(names[place - 1])} comes before {names[place]}."
    )


_KINDS: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("animal", "an animal", words.ANIMALS),
    ("fruit", "a fruit", words.FRUIT),
    ("vegetable", "a vegetable", words.VEGETABLES),
    ("tool", "a tool", words.TOOLS),
    ("toy", "a toy", words.TOYS),
    ("city", "a city", words.CITIES),
    ("country", "a country", words.COUNTRIES),
    ("color", "a color", words.COLORS[:10]),
    ("job", "a job", words.JOBS),
    ("musical instrument", "a musical instrument", words.MUSIC),
)


def _is_kind(rng: random.Random) -> tuple[str, str]:
    (_, right, members), (_, wrong, _) = rng.sample(_KINDS, 2)
    word = rng.choice(members)
    proper = word[0].isupper() or right == "a color"
    what = word if proper else words.a(word)
    shown = words.upper_first(what)
    if rng.random() < 0.35:
        return choose(rng, f"{{What is {what}?|What kind of thing is {what}?}}"), f"{shown} is {right}."
    if rng.random() < 0.5 or {right, wrong} == {"a color", "a fruit"}:
        return f"Is {what} {right}?", f"Yes, {what} is {right}."
    return f"Is {what} {wrong}?", f"No, {what} is {right}."


def _plain(rng: random.Random) -> tuple[str, str]:
    question, answer = rng.choice(_PLAIN)
    return choose(rng, question), answer


_QUESTIONS = (
    _capital,
    _capital,
    _sound,
    _legs,
    _young,
    _opposite,
    _hue,
    _home,
    _use,
    _use,
    _who_makes,
    _calendar,
    _is_kind,
    _is_kind,
    _plain,
    _plain,
)


def question(rng: random.Random, split: Split) -> tuple[str, str]:
    """A question and its true answer. What is held out is its wording with these words."""
    while True:
        asked, answer = rng.choice(_QUESTIONS)(rng)
        if words.belongs(split, asked):
            return asked, answer


def facts(rng: random.Random, split: Split) -> Example:
    """One to four questions."""
    pairs = [question(rng, split) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
    before = rng.choice(("", "", "", "Please tell me: ", "I have a question. ", "Do you know this? "))
    texts = [text for asked, answer in pairs for text in (asked, answer)]
    texts[0] = before + texts[0]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(kind="facts", turns=turns, expected={"answer": texts[-1]})
