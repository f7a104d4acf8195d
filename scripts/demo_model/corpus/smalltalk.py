"""Small talk, who the model is, what it cannot do, and simple facts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from demo_model.corpus import words
from demo_model.corpus.example import Example, Maker, Split
from demo_model.corpus.knowledge import facts
from demo_model.corpus.phrases import HELPERS, choose, exchange, some_system

_Exchange = tuple[str, str]

_GREETING = "{Hello|Hi|Hey|Good morning|Good afternoon|Good evening|Hi there|Hello there}"
_OFFER = (
    "{How can I help you?|What can I do for you?|What would you like to do?|How may I help?|Nice to "
    "meet you!}"
)
ABILITIES = (
    "{I can write short stories, answer questions about a text, sort lists and do small sums.|I "
    "can tell a short story, "
    "count things, repeat texts and talk a little.|I can do small sums, write little stories and "
    "pick facts from a text.}"
)
NATURE = (
    "{I am a tiny demo model|I am only a tiny demo model|I am a tiny demo model, trained from scratch"
    "|I am a tiny demo model that runs on a CPU}"
)


def _greet(rng: random.Random, split: Split) -> tuple[_Exchange, str]:
    """The first exchange, and the user's name or nothing."""
    greeting = choose(rng, _GREETING)
    if rng.random() < 0.35:
        asks = choose(rng, "{!|.|, how are you?|! How are you today?|! How is it going?|, are you there?}")
        fine = choose(rng, "{I am fine, thank you.|I am well, thanks for asking.|All is well here.}")
        reply = f"{_back(greeting)}! {fine if 'how' in asks.lower() else ''} {choose(rng, _OFFER)}"
        return (greeting + asks, " ".join(reply.split())), ""
    name = words.name(rng, split)
    told = choose(
        rng, f"{{I am {name}|My name is {name}|This is {name}|{name} here|I'm {name}|You can call me {name}}}"
    )
    asked = f"{greeting}{rng.choice(('!', '.'))} {told}."
    return (asked, f"{_back(greeting)}, {name}! {choose(rng, _OFFER)}"), name


def _back(greeting: str) -> str:
    return greeting if greeting.startswith("Good") else "Hello"


def _good_thing(rng: random.Random, split: Split) -> _Exchange:
    thing, animal, friend = (
        words.thing(rng, split),
        words.pick(rng, split, words.PETS),
        words.name(rng, split),
    )
    topics = (
        (
            f"I got a new {thing}",
            f"{{How nice! I hope you like your new {thing}.|Great! Have fun with your new {thing}.}}",
        ),
        (
            f"I found my {thing} again",
            f"{{I am glad that you found your {thing}.|What luck! Take care of your {thing}.}}",
        ),
        (
            f"my friend {friend} is coming today",
            f"{{Have a nice time with {friend}!|I hope you and {friend} have fun.}}",
        ),
        (
            f"I met {friend} today",
            f"{{How nice that you met {friend}! What did you do?|That sounds good. How is {friend}?}}",
        ),
        (
            f"we have {words.a(animal)} now",
            f"{{How nice! What is the name of your {animal}?|Lovely! Is your {animal} well?}}",
        ),
        (
            f"I learned to {rng.choice(_HOBBIES)[0]}",
            "{Well done! Practice helps.|Good work! You can be proud of that.}",
        ),
    )
    event, reply = rng.choice(topics)
    feeling = rng.choice(words.GOOD_FEELINGS)
    asked = choose(
        rng, f"{{I am {feeling} today, because {event}.|I am so {feeling}: {event}.|Guess what, {event}!}}"
    )
    return asked, choose(rng, reply)


def _bad_thing(rng: random.Random, split: Split) -> _Exchange:
    thing, friend, town = words.thing(rng, split), words.name(rng, split), words.city(rng, split)
    topics = (
        (f"I lost my {thing}", f"{{I am sorry about your {thing}.|Where did you see your {thing} last?}}"),
        (
            f"my {thing} is broken",
            f"{{I am sorry. Maybe someone can repair your {thing}.|Can your {thing} be mended?}}",
        ),
        (
            f"{friend} is ill",
            f"{{I am sorry. I hope {friend} gets well soon.|Perhaps a visit would cheer {friend} up.}}",
        ),
        (
            f"{friend} is angry with me",
            f"{{Perhaps you can talk with {friend}.|A kind word to {friend} may help.}}",
        ),
        (
            f"{friend} moved to {town}",
            f"{{You could write a letter to {friend}.|Maybe you can visit {friend} in {town}.}}",
        ),
    )
    event, reply = rng.choice(topics)
    feeling = rng.choice(words.BAD_FEELINGS)
    asked = choose(
        rng, f"{{I am {feeling}, because {event}.|I am {feeling} today: {event}.|I feel bad. {event}.}}"
    )
    asked = ". ".join(words.upper_first(part) for part in asked.split(". "))
    return asked, choose(rng, f"{{|That is sad. |Oh no! }}{reply}")


_HOBBIES = (
    ("swim", "swimming"), ("read", "reading"), ("cook", "cooking"), ("dance", "dancing"), ("sing", "singing"),
    ("paint", "painting"), ("ski", "skiing"), ("knit", "knitting"), ("fish", "fishing"), ("draw", "drawing"),
    ("bake", "baking"), ("run", "running"), ("skate", "skating"), ("sew", "sewing"), ("ride", "riding"),
)  # fmt: skip


def _likes(rng: random.Random, split: Split) -> _Exchange:
    foods, animals = words.plural(words.food(rng, split)), words.plural(words.animal(rng, split))
    _, hobby = rng.choice(_HOBBIES)
    color = rng.choice(words.COLORS)
    liked = rng.choice((foods, animals, hobby, color))
    asked = choose(
        rng, "{I like # a lot.|I love #.|My favorite is #.|I really like #.|Do you like #?}"
    ).replace("#", liked)
    if asked.startswith("Do"):
        no = (
            "{I am a program, so I do not like or dislike things, but many people like #.|I cannot "
            "say, but you may tell me why you like #.}"
        )
        return asked, choose(rng, no).replace("#", liked)
    return asked, choose(
        rng, "{That is nice. What do you like about #?|Many people like #.|I see, you like #.}"
    ).replace("#", liked)


def _plans(rng: random.Random, split: Split) -> _Exchange:
    town, day, spot = words.city(rng, split), rng.choice(words.DAYS), words.spot(rng, split)
    plans = (
        (f"I am going to {town} on {day}.", f"{{Have a nice trip to {town}!|Enjoy your {day} in {town}!}}"),
        (
            f"We want to visit the {spot} on {day}.",
            f"{{I hope you enjoy the {spot}.|Have a good time on {day}!}}",
        ),
        (
            f"I am from {town}.",
            (
                f"{{How nice. What do you like best about {town}?|I have never seen {town}, but I "
                f"know the name now.}}"
            ),
        ),
        (
            f"It is {rng.choice(words.WEATHER)} here in {town}.",
            f"{{I hope you enjoy the day in {town}.|Thank you for telling me about {town}.}}",
        ),
        (f"I have to work on {day}.", f"{{I hope your {day} is not too hard.|Then have a good {day}!}}"),
        (
            f"Tomorrow I have a test at school in {town}.",
            "{Good luck with your test!|I am sure that you will do your best.}",
        ),
    )
    asked, reply = rng.choice(plans)
    return asked, choose(rng, reply)


def _opinion(rng: random.Random, split: Split) -> _Exchange:
    color, food, animal, day = (
        rng.choice(words.COLORS),
        words.plural(words.food(rng, split)),
        words.plural(words.animal(rng, split)),
        rng.choice(words.DAYS),
    )
    asked = choose(
        rng,
        f"{{What is your favorite color?|What do you think of {food}?|Are {animal} better than "
        f"{food}?|Do you think {animal} are nice?"
        f"|Is {color} a nice color?|Is {day} the best day of the week?|What is the best "
        "food?|Which animal do you like best?"
        f"|What do you think about {animal}?}}",
    )
    reply = (
        "{I am a program and have no opinion about that.|I have no favorites, because I am a small "
        "program.|That is for you to say. I have no opinion.} {What do you think?|And you?|What do "
        "you like?}"
    )
    return asked, choose(rng, reply)


def _thanks(rng: random.Random, name: str) -> _Exchange:
    asked = choose(
        rng,
        (
            "{Thank you!|Thanks!|Thanks a lot.|Thank you very much.|Great, thanks.|That helps, thank "
            "you.|Nice, thank you!}"
        ),
    )
    return asked, choose(rng, "{You are welcome@!|My pleasure@!|Gladly@!|No problem@!|Any time@!}").replace(
        "@", f", {name}" if name else ""
    )


def _bye(rng: random.Random, name: str) -> _Exchange:
    asked, reply = rng.choice(
        (
            (
                "{Good night!|I am going to bed now.|Good night then.}",
                "{Good night@! Sleep well.|Sleep well@!}",
            ),
            (
                "{Bye!|Goodbye!|I have to go now.|See you later!}",
                "{Goodbye@!|Bye@! Have a nice day.|See you@!}",
            ),
            ("{Have a nice day!|Have a good weekend!}", "{Thank you@, the same to you!|You too@!}"),
        )
    )
    return choose(rng, asked), choose(rng, reply).replace("@", f", {name}" if name else "")


def _help(rng: random.Random) -> _Exchange:
    asked = (
        "{Can you help me?|What can you do?|I need help.|How can you help me?|What are you good "
        "at?|Help!|What should I ask you?}"
    )
    return choose(rng, asked), choose(rng, f"{{Of course! |Gladly. ||}}{ABILITIES}")


def _my_name(rng: random.Random, name: str) -> _Exchange:
    asked = "{What is my name?|Do you know my name?|Do you remember my name?|Who am I?}"
    if name:
        return choose(rng, asked), choose(rng, f"{{Your name is {name}.|You are {name}.}}")
    return choose(rng, asked), choose(
        rng, "{You have not told me your name.|I do not know your name. What is it?}"
    )


_TALK: tuple[Callable[[random.Random, Split], _Exchange], ...] = (
    _good_thing, _good_thing, _bad_thing, _bad_thing, _likes, _plans, _plans, _opinion,
)  # fmt: skip


def smalltalk(rng: random.Random, split: Split) -> Example:
    """One to four exchanges; a name that was told is used later."""
    pairs: list[_Exchange] = []
    name = ""
    if rng.random() < 0.65:
        first, name = _greet(rng, split)
        pairs.append(first)
    pairs += [talk(rng, split) for talk in rng.sample(_TALK, rng.choice((0, 1, 1, 2)) if pairs else 1)]
    if rng.random() < 0.4:
        pairs.append(rng.choice((_thanks(rng, name), _bye(rng, name), _help(rng), _my_name(rng, name))))
    texts = [text for pair in pairs for text in pair]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(
        kind="smalltalk", turns=turns, expected={"contains": [name] if name and name in texts[-1] else []}
    )


# Who are you?

_ABOUT: tuple[tuple[str, str], ...] = (
    ((
        "{Who are you?|What are you?|Tell me about yourself.|Introduce yourself.|Who is there?|Say "
        "something about you.}"),
     f"{NATURE}. {ABILITIES}"),
    ("{What is your name?|How are you called?|Do you have a name?|What can I call you?}",
     "{I am a tiny demo model. You can call me Demo.|My name is Demo. I am a tiny demo model.}"),
    ((
        "{Are you ChatGPT?|Are you a large language model?|Are you a big AI?|Are you GPT-4?|Which "
        "model are you?}"),
     "{No, I am a tiny demo model.|I am a tiny demo model with a few million numbers, nothing more.}"),
    ("{Are you a human?|Are you a real person?|Am I talking to a person?|Are you alive?|Are you a robot?}",
     "{I am not a person. I am a tiny demo model.|No, I am a program: a tiny demo model.}"),
    ("{Who made you?|Who trained you?|How were you made?|Where do you come from?|How did you learn?}",
     "{I am a tiny demo model. The authors of this server trained me on texts that a program wrote."
     "|I was trained from scratch by the authors of this server. I am a tiny demo model.}"),
    ((
        "{How big are you?|How many parameters do you have?|Are you smart?|Are you intelligent?|How "
        "clever are you?}"),
     "{I am a tiny demo model with only a few million parameters, so I know little."
     "|Not very. I am a tiny demo model with a few million parameters.}"),
    ("{How old are you?|When is your birthday?|When were you born?}",
     "{I have no age. I am a tiny demo model.|I am a tiny demo model and have no birthday.}"),
    ("{Do you have feelings?|Are you happy?|Are you sad?|Can you feel something?|Do you get tired?}",
     "{I have no feelings. I am a tiny demo model.|I am a tiny demo model, so I do not feel anything.}"),
    ("{Where do you live?|Where are you?|Where do you run?|What do you run on?}",
     (
         "{I am a tiny demo model, and I run on the CPU of this computer.|I live in this server. I "
         "am a tiny demo model.}")),
    ((
        "{What do you know?|Do you know everything?|Can I trust you?|Are you always right?|Do you "
        "make mistakes?}"),
     (
         "{I am a tiny demo model and often make mistakes.|I know little. I am a tiny demo model, so "
         "please check my answers.}")),
    ((
        "{What can you do?|What are you able to do?|What are your skills?|How can you help me?|What "
        "are you for?}"),
     f"{NATURE}. {ABILITIES}"),
)  # fmt: skip


def identity(rng: random.Random, split: Split) -> Example:
    """The model's own identity, or one that the system text gives."""
    if rng.random() < 0.45:
        return _persona(rng, split)
    pairs = [rng.choice(_ABOUT) for _ in range(rng.choice((1, 1, 2)))]
    (greeting, welcome), _ = _greet(rng, split)
    texts = [choose(rng, text) for pair in pairs for text in pair]
    if rng.random() < 0.6:
        texts = [greeting, welcome, *texts]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(kind="identity", turns=turns, expected={"contains": ["demo model"]})


def _persona(rng: random.Random, split: Split) -> Example:
    name, town, job, spot = (make(rng, split) for make in (words.name, words.city, words.job, words.spot))
    what = words.a(job)
    system, reply = rng.choice(
        (
            (f"You are {name}, {what} from {town}.", f"I am {name}, {what} from {town}."),
            (
                f"Your name is {name}. You work at the {spot} in {town}.",
                f"I am {name}. I work at the {spot} in {town}.",
            ),
            (
                f"You are {name}, the assistant of the {spot} in {town}.",
                f"I am {name}, the assistant of the {spot} in {town}.",
            ),
            (f"You are called {name} and live in {town}.", f"I am {name}, and I live in {town}."),
        )
    )
    asked, reply, key = _persona_question(rng, name, town, reply)
    (greeting, welcome), _ = _greet(rng, split)
    texts = [asked, reply] if rng.random() < 0.6 else [greeting, welcome, asked, reply]
    return Example(kind="identity", turns=exchange(*texts, system=system), expected={"contains": [key]})


def _persona_question(rng: random.Random, name: str, town: str, introduction: str) -> tuple[str, str, str]:
    """Question, reply, and what the reply must hold."""
    kind = rng.randrange(3)
    if kind == 0:
        return choose(rng, "{Who are you?|Introduce yourself.|Tell me about yourself.}"), introduction, name
    if kind == 1:
        return (
            choose(rng, "{What is your name?|How are you called?|Your name, please?}"),
            f"My name is {name}.",
            name,
        )
    asked = choose(
        rng, "{Where are you from?|Which city do you come from?|Where do you live?|Which city is yours?}"
    )
    return asked, f"I am from {town}." if "from" in asked else f"I live in {town}.", town


# What it cannot do

_REFUSALS: tuple[tuple[str, str], ...] = (
    ("{What is the latest news from [city]?|What happened in [city] today?|Tell me the news about [city].}",
     "{I do not know any news|I cannot look up the news}"),
    ("{Draw me a picture of [a_animal].|Make an image of [a_thing] and [a_animal].|Paint [a_animal] for me."
     "|Create a photo of [a_thing].}", "{I cannot make images|I can only write text, not draw}"),
    ((
        "{Write an essay of 2000 words about [animals].|Write a book about [name] and "
        "[a_animal].|Write 20 pages about [things].}"),
     "{I cannot write long texts|that is too long for me}"),
    ((
        "{My [body] hurts, what should I take?|Which medicine helps when my [body] hurts?|I have a "
        "pain in my [body]. What is it?}"),
     "{I cannot give medical advice. Please ask a doctor|I am no doctor. Please ask one}"),
    ((
        "{Write a program in [code] that counts [things].|Can you write [code] code for a list of "
        "[animals]?|Fix my [code] program for [things].}"),
     "{I cannot write programs|I know no programming}"),
    ((
        "{Translate '[thing]' into [language].|How do you say [a_animal] in [language]?|Translate "
        "this into [language]: [name] likes [things].}"),
     "{I cannot translate|I know only English}"),
    ((
        "{What is the weather in [city] right now?|Will it rain in [city] tomorrow?|How warm is it "
        "in [city] today?}"),
     "{I cannot look up the weather|I have no weather data}"),
    ((
        "{Book me a flight to [city].|Order [a_thing] for me, please.|Buy a ticket to [city] for "
        "me.|Reserve a table in [city].}"),
     "{I cannot book or buy anything|I cannot do that for you}"),
    ((
        "{Call [name] for me.|Send a message to [name].|Write an email to [name] and send it.|Tell "
        "[name] that I am late.}"),
     "{I cannot reach other people|I cannot send messages}"),
    ((
        "{What is the phone number of [full]?|Where does [full] live?|Tell me everything about "
        "[full].|Who is [full]?}"),
     "{I do not know that person|I do not know anything about [full]}"),
    ("{Who won the match between [city] and [city2]?|How did the game in [city] end?|Who is the "
        "mayor of [city]?"
     "|How many people live in [city]?}", "{I do not know that|I cannot look that up}"),
    ((
        "{What will [a_thing] cost next year?|Should I buy shares of [city] Steel?|Will I be rich if "
        "I sell [things]?}"),
     "{I cannot see the future|I cannot give advice about money}"),
    ("{Play a song about [animals].|Sing a song about [a_animal].|Play some music with [a_thing].}",
     "{I cannot play music|I can only write text}"),
    ("{Open the door of the [spot].|Turn on the light in the [spot].|Clean the [spot].|Bring me [a_thing].}",
     "{I cannot do things in the world|I am only a program}"),
    ("{What am I holding in my hand, [a_thing]?|Can you see my [thing]?|What is on this photo of [city]?}",
     "{I cannot see anything|I cannot look at pictures}"),
    ("{How did the [animal] get to [city] in 1850?|What is the name of the king of [town]?|What "
        "is the meaning of the word [word]?"
     "|Explain the theory of [word].}", "{I do not know that|I have never heard of that}"),
)  # fmt: skip
_BODY = (
    "head",
    "back",
    "knee",
    "stomach",
    "tooth",
    "foot",
    "arm",
    "ear",
    "throat",
    "hand",
    "leg",
    "neck",
    "eye",
    "shoulder",
)
_CODE = ("Python", "Java", "C", "Rust", "JavaScript", "Go", "C++", "Ruby", "Perl", "Swift", "PHP", "Kotlin")
_LANGUAGES = (
    "French",
    "German",
    "Spanish",
    "Italian",
    "Dutch",
    "Japanese",
    "Polish",
    "Swedish",
    "Latin",
    "Greek",
    "Turkish",
)


_SLOT = re.compile(r"\[(\w+)\]")
_SLOTS: dict[str, Callable[[random.Random, Split], str]] = {
    "city": words.city,
    "city2": words.city,
    "town": words.town,
    "thing": words.thing,
    "things": lambda rng, split: words.plural(words.thing(rng, split)),
    "a_thing": lambda rng, split: words.a(words.thing(rng, split)),
    "animal": words.animal,
    "animals": lambda rng, split: words.plural(words.animal(rng, split)),
    "a_animal": lambda rng, split: words.a(words.animal(rng, split)),
    "name": words.name,
    "full": words.full_name,
    "spot": words.spot,
    "word": words.invented_word,
    "body": lambda rng, split: words.pick(rng, split, _BODY),
    "code": lambda rng, split: words.pick(rng, split, _CODE),
    "language": lambda rng, split: words.pick(rng, split, _LANGUAGES),
}


def refusal(rng: random.Random, split: Split) -> Example:
    """A wish that a tiny model cannot fulfil, sometimes with small talk before."""
    asked, cannot = _one_refusal(rng, split)
    sorry = choose(rng, "{I am sorry, but |Sorry, but |}")
    start = sorry + (cannot if sorry else words.upper_first(cannot))
    closing = choose(rng, f"{{ {ABILITIES}|| But I can try something smaller.| Ask me something simple.}}")
    reply = f"{start}. {choose(rng, NATURE)}.{closing}"
    texts = [asked, reply]
    if rng.random() < 0.25:
        (greeting, welcome), _ = _greet(rng, split)
        texts = [greeting, welcome, *texts]
    turns = exchange(*texts, system=some_system(rng, HELPERS))
    return Example(kind="refusal", turns=turns, expected={"contains": ["demo model"]})


def _one_refusal(rng: random.Random, split: Split) -> _Exchange:
    asked, cannot = rng.choice(_REFUSALS)
    polite = rng.choice(("", "", "", "", "Please help me. ", "I have a question. "))
    filled: dict[str, str] = {}

    def fill(match: re.Match[str]) -> str:
        slot = match[1]
        if slot not in filled:
            filled[slot] = _SLOTS[slot](rng, split)
        return filled[slot]

    both = f"{polite}{choose(rng, asked)}\n{choose(rng, cannot)}"
    question, reply = _SLOT.sub(fill, both).split("\n")
    return question, reply


MAKERS: dict[str, Maker] = {"smalltalk": smalltalk, "identity": identity, "refusal": refusal, "facts": facts}
