"""Small rules of English: articles, plurals, verb forms, lists, sentences."""

from __future__ import annotations

from collections.abc import Sequence

_AN_IN_SPITE = ("hour", "honest", "honor", "heir")
_A_IN_SPITE = ("uni", "use", "euro", "one", "u-", "ukulele")
_AN_NUMBERS = ("8", "11 ", "18 ")

_PLURALS = {
    "child": "children", "man": "men", "woman": "women", "mouse": "mice", "goose": "geese", "foot": "feet",
    "tooth": "teeth", "leaf": "leaves", "shelf": "shelves", "loaf": "loaves", "knife": "knives",
    "wolf": "wolves", "calf": "calves", "half": "halves", "scarf": "scarves", "sheep": "sheep",
    "deer": "deer",
    "fish": "fish", "goldfish": "goldfish", "potato": "potatoes", "tomato": "tomatoes", "mango": "mangoes",
    "person": "people", "postman": "postmen", "octopus": "octopuses", "bus": "buses",
}  # fmt: skip

_PAST = {
    "be": "was", "become": "became", "begin": "began", "break": "broke", "bring": "brought", "build": "built",
    "buy": "bought", "catch": "caught", "choose": "chose", "come": "came", "cut": "cut", "do": "did",
    "draw": "drew", "drink": "drank", "drive": "drove", "eat": "ate", "fall": "fell", "feed": "fed",
    "feel": "felt", "find": "found", "fly": "flew", "forget": "forgot", "get": "got", "give": "gave",
    "go": "went", "grow": "grew", "have": "had", "hear": "heard", "hide": "hid", "hold": "held",
    "keep": "kept", "know": "knew", "leave": "left", "lend": "lent", "lose": "lost", "make": "made",
    "meet": "met", "pay": "paid", "put": "put", "read": "read", "ride": "rode", "ring": "rang", "run": "ran",
    "say": "said", "see": "saw", "sell": "sold", "send": "sent", "sing": "sang", "sit": "sat",
    "sleep": "slept", "speak": "spoke", "stand": "stood", "swim": "swam", "take": "took", "teach": "taught",
    "tell": "told", "think": "thought", "throw": "threw", "wear": "wore", "win": "won", "write": "wrote",
    "plan": "planned", "stop": "stopped", "visit": "visited", "open": "opened", "carry": "carried",
    "hop": "hopped", "clap": "clapped", "wrap": "wrapped", "drop": "dropped", "mop": "mopped",
}  # fmt: skip


def a(words: str) -> str:
    """The words with "a" or "an" before them."""
    low = words.lower()
    if low.startswith(_AN_IN_SPITE) or f"{low} ".startswith(_AN_NUMBERS):
        return f"an {words}"
    vowel = low[0] in "aeiou" and not low.startswith(_A_IN_SPITE)
    return f"{'an' if vowel else 'a'} {words}"


def plural(noun: str) -> str:
    """The plural of a noun; of several words, the last one changes."""
    *before, last = noun.split(" ")
    return " ".join([*before, _plural_word(last)])


def _plural_word(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"


def count_of(number: int, noun: str) -> str:
    """1 apple, 3 apples."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def past(verb: str) -> str:
    """The past of a verb's base form."""
    if verb in _PAST:
        return _PAST[verb]
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return f"{verb[:-1]}ied"
    return f"{verb}ed"


def third(verb: str) -> str:
    """The form behind he and she."""
    special = {"have": "has", "be": "is", "do": "does", "go": "goes"}
    return special[verb] if verb in special else _plural_verb(verb)


def _plural_verb(verb: str) -> str:
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return f"{verb[:-1]}ies"
    return f"{verb}es" if verb.endswith(("s", "x", "z", "ch", "sh")) else f"{verb}s"


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def join(words: Sequence[str], conjunction: str = "and") -> str:
    """one; one and two; one, two and three."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
