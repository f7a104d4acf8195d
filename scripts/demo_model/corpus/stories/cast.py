"""Who and what is in one telling: fills the slots of a plot, the same way all through."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

from demo_model.corpus import words
from demo_model.corpus.example import Split
from demo_model.corpus.stories import groups
from demo_model.corpus.words import Person

_SLOT = re.compile(r"\[(\w+)\]")
_DOUBLE_STOP = re.compile(r"([.!?]\"?)\.")
_HERO = {"he", "him", "his", "himself"}


def in_spot(spot: str) -> str:
    """The spot behind its preposition."""
    if spot in groups.ON_SPOTS:
        return f"on the {spot}"
    return f"at the {spot}" if spot in groups.AT_SPOTS else f"in the {spot}"


def _stop(sentence: str) -> str:
    """The sentence with one stop at its end."""
    ended = _DOUBLE_STOP.sub(r"\1", sentence)
    return ended if ended.endswith((".", "!", "?", '"')) else f"{ended}."


class Cast:
    """Draws each slot when it is first asked for.

    [H] and [F] are the hero and the friend, [he], [fhe] and so on their pronouns; [Hh] is the hero's name
    where nobody has named him yet. A pronoun that might be taken for another person becomes the name.
    """

    def __init__(self, rng: random.Random, split: Split, plot_groups: Mapping[str, str]) -> None:
        self._rng = rng
        self._split = split
        self._groups = plot_groups
        self._known: dict[str, str] = {}
        self.hero = words.person(rng, split)
        self.friend = self._other_person()
        self._subject: str | None = None
        """Who was named last: H, F or another."""
        self._here: list[str] = []
        """Who was meant so far in this sentence."""

    def _other_person(self) -> Person:
        while True:
            found = words.person(self._rng, self._split)
            if found.name != self.hero.name:
                return found

    def fill(self, text: str) -> str:
        """One beat of the story, slots filled."""
        before, self._here = self._here, []
        alone = bool(before) and set(before) == {"H"}
        if text.startswith("[His] [elder] ") and self._elder_is_clear():
            text = text.replace("[His] [elder]", self._elder_pronoun(), 1)
        filled = _SLOT.sub(lambda match: self._slot(match[1], alone and match.start() == 0), text)
        return _stop(words.upper_first(filled))

    def _elder_pronoun(self) -> str:
        return "She" if self._word("elder") in groups.WOMEN else "He"

    def _elder_is_clear(self) -> bool:
        return self._subject == "other" and self._elder_pronoun().lower() != self.hero.he

    def topic(self, text: str) -> str:
        """A topic or a title, without any effect on who was named last."""
        return _SLOT.sub(lambda match: self._word(match[1]), text)

    def _slot(self, slot: str, can_shorten: bool) -> str:
        if slot in ("H", "Hh"):
            return self._hero_name(can_shorten)
        if slot == "F":
            return self._name("F", self.friend)
        if slot.lower() in _HERO:
            return self._pronoun(slot, "H", self.hero)
        if slot[0] == "f" and slot[1:] in _HERO:
            return self._pronoun(slot[1:], "F", self.friend)
        if slot in ("elder", "adult", "parent"):
            self._subject = "other"
            self._here.append("other")
        return self._word(slot)

    def _hero_name(self, can_shorten: bool) -> str:
        if can_shorten and self._rng.random() < 0.7:
            self._here.append("H")
            return self.hero.he.capitalize()
        return self._name("H", self.hero)

    def _name(self, who: str, person: Person) -> str:
        self._subject = who
        self._here.append(who)
        return person.name

    def _pronoun(self, slot: str, who: str, person: Person) -> str:
        unclear = self._subject != who and who not in self._here
        if unclear and slot.lower() != "himself":
            return self._name(who, person) + ("'s" if slot.lower() == "his" else "")
        self._here.append(who)
        form = str(getattr(person, slot.lower()))
        return form.capitalize() if slot[0].isupper() else form

    def _word(self, slot: str) -> str:
        if slot in _FRESH:
            return self._rng.choice(_FRESH[slot])
        if slot.startswith("a_"):
            return words.a(self._word(slot[2:]))
        if slot not in self._known:
            self._known[slot] = self._draw(slot)
        return self._known[slot]

    def _draw(self, slot: str) -> str:
        if slot in _MAKERS:
            return _MAKERS[slot](self)
        if slot in _LISTS:
            return words.pick(self._rng, self._split, _LISTS[slot])
        if slot in _CHOICES:
            return self._rng.choice(_CHOICES[slot])
        if slot[0].isupper():
            return " ".join(word.capitalize() for word in self._word(slot.lower()).split(" "))
        raise KeyError(f"nothing fills [{slot}]")

    def _thing(self) -> str:
        group = groups.THINGS[self._groups.get("things", "gifts")]
        return words.pick(self._rng, self._split, group)

    def _spot(self) -> str:
        spots = groups.NATURE if "spots" in self._groups else words.SPOTS
        return words.pick(self._rng, self._split, spots)

    def _wild(self, slow: bool) -> str:
        group = self._groups.get("wild", "visitors")
        return words.pick(self._rng, self._split, groups.WILD["slow" if slow and group == "fast" else group])

    def _wild2(self) -> str:
        first = self._word("wild")
        for _ in range(20):
            found = self._wild(slow=True)
            if found != first:
                return found
        return "tortoise"

    def _other_food(self) -> str:
        return words.several(lambda: self._rng.choice(groups.SNACKS), 1, [self._word("food")])[0]

    def _open(self) -> str:
        kind = self._rng.choice(("sunny", "warm", "bright", "quiet", "fine", "cool", "busy"))
        return self._rng.choice(
            (
                f"One {kind} morning",
                "One day",
                f"One {kind} day",
                f"On a {kind} {self._word('day')}",
                "One morning",
            )
        )

    def _is_woman(self) -> bool:
        return self._word("adult") == "woman"


_MAKERS: dict[str, Callable[[Cast], str]] = {
    "H": lambda cast: cast.hero.name,
    "F": lambda cast: cast.friend.name,
    "His": lambda cast: f"{cast.hero.name}'s",
    "girl": lambda cast: "girl" if cast.hero.he == "she" else "boy",
    "thing": Cast._thing,
    "things": lambda cast: words.plural(cast._word("thing")),
    "adjthing": lambda cast: f"{cast._rng.choice(_THING_LOOKS)} {cast._word('thing')}",
    "athing": lambda cast: words.a(cast._word("adjthing")),
    "wild": lambda cast: cast._wild(slow=False),
    "wild2": Cast._wild2,
    "animals": lambda cast: words.plural(cast._word("animal")),
    "spot": Cast._spot,
    "inplace": lambda cast: in_spot(cast._word("spot")),
    "foods": lambda cast: words.plural(cast._word("food")),
    "foods2": lambda cast: words.plural(cast._other_food()),
    "flowers": lambda cast: words.plural(cast._word("flower")),
    "Open": Cast._open,
    "parent": lambda cast: "mother" if cast._is_woman() else "father",
    "yhe": lambda cast: "she" if cast._is_woman() else "he",
    "yhis": lambda cast: "her" if cast._is_woman() else "his",
    "elder": lambda cast: cast._rng.choice(groups.WOMEN + groups.MEN),
    "F2": lambda cast: words.boy(cast._rng, cast._split).name,
    "Sur": lambda cast: words.surname(cast._rng, cast._split),
    "town": lambda cast: words.town(cast._rng, cast._split),
    "city": lambda cast: words.city(cast._rng, cast._split),
    "City": lambda cast: cast._word("city"),
    "Petname": lambda cast: words.pick(cast._rng, cast._split, groups.PET_NAMES),
}
_LISTS: dict[str, Sequence[str]] = {
    "food": groups.SNACKS,
    "animal": words.ANIMALS,
    "pet": groups.PETS,
    "job": words.JOBS,
    "flower": words.FLOWERS,
    "skill": groups.SKILLS,
    "fear": groups.FEARS,
    "contest": groups.CONTESTS,
    "build": groups.BUILDS,
    "instrument": groups.INSTRUMENTS,
    "chore": groups.CHORES,
}
_CHOICES: dict[str, Sequence[str]] = {
    "adult": ("man", "woman"),
    "day": words.DAYS,
    "color": ("red", "blue", "green", "yellow", "orange", "purple", "pink"),
    "petcolor": ("white", "black", "gray"),
    "petcolor2": ("brown", "golden", "orange"),
    "three": ("three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    "trait": words.KIND_TRAITS,
}
_FRESH: dict[str, Sequence[str]] = {
    "sad": ("sad", "unhappy", "upset", "sad and lonely"),
    "sadly": ("sadly", "quietly", "in a low voice"),
    "glad": ("happy", "glad", "pleased"),
    "time": words.DAY_TIMES,
}
_THING_LOOKS: Sequence[str] = (
    *words.COLORS,
    *words.COLORS,
    "little",
    "small",
    "pretty",
    "shiny",
    "striped",
    "lovely",
    "nice",
)
