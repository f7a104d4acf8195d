"""Words for the corpus, with a part of each list held out of training.

pick(rng, split, THINGS)    a word of a list        name(rng, split)            Anna
person(rng, split)          Person: name, he, him   invented_name(rng, split)   Tarino
city, town, country, spot   places                  thing, animal, food, job    nouns in the singular
a("apple")                  an apple                plural("box")               boxes
"""

from demo_model.corpus.words.choose import (
    Person,
    animal,
    belongs,
    boy,
    city,
    country,
    food,
    full_name,
    girl,
    invented_name,
    invented_word,
    job,
    name,
    names,
    of_one_sort,
    part,
    person,
    pick,
    several,
    spot,
    surname,
    thing,
    town,
)
from demo_model.corpus.words.grammar import a, count_of, join, past, plural, third, upper_first
from demo_model.corpus.words.people import BOYS, GIRLS, SURNAMES
from demo_model.corpus.words.places import CITIES, COUNTRIES, SPOTS
from demo_model.corpus.words.qualities import (
    BAD_FEELINGS,
    COLORS,
    DAY_TIMES,
    DAYS,
    GOOD_FEELINGS,
    KIND_TRAITS,
    LOOKS,
    MONTHS,
    NUMBERS,
    SEASONS,
    SIZES,
    WEATHER,
)
from demo_model.corpus.words.things import (
    ANIMALS,
    CLOTHES,
    DISHES,
    FARM_ANIMALS,
    FLOWERS,
    FOODS,
    FRUIT,
    HOUSE,
    JOBS,
    MUSIC,
    OUTDOORS,
    PAPERS,
    PETS,
    THINGS,
    TOOLS,
    TOYS,
    TREES,
    VEGETABLES,
    VEHICLES,
    WILD_ANIMALS,
)

NAMES = GIRLS + BOYS

__all__ = [
    "ANIMALS", "BAD_FEELINGS", "BOYS", "CITIES", "CLOTHES", "COLORS", "COUNTRIES", "DAYS", "DAY_TIMES",
    "DISHES", "FARM_ANIMALS", "FLOWERS", "FOODS", "FRUIT", "GIRLS", "GOOD_FEELINGS", "HOUSE", "JOBS",
    "KIND_TRAITS", "LOOKS", "MONTHS", "MUSIC", "NAMES", "NUMBERS", "OUTDOORS", "PAPERS", "PETS",
    "SEASONS", "SIZES", "SPOTS", "SURNAMES", "THINGS", "TOOLS", "TOYS", "TREES", "VEGETABLES",
    "VEHICLES", "WEATHER", "WILD_ANIMALS", "Person", "a", "animal", "belongs", "boy", "city",
    "count_of", "country", "food", "full_name", "girl", "invented_name", "invented_word", "job", "join",
    "name", "names",
    "of_one_sort", "part", "past", "person", "pick", "plural", "several", "spot", "surname", "thing",
    "third", "town", "upper_first",
]  # fmt: skip
