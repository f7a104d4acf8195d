"""Tools that do something: calendar, reminders, timer, email, music, lights."""

from __future__ import annotations

import random

from demo_model.corpus import task_words, words
from demo_model.corpus.example import Split, ToolCall
from demo_model.corpus.extraction.events import title
from demo_model.corpus.phrasing import capital, chance, one_of, vary
from demo_model.corpus.task_words import clock, company, date, first_name, invented_name
from demo_model.corpus.tools.use import INTEGER, STRING, ToolUse, choice_of, tool
from demo_model.corpus.words.listed import listed

CHORES = listed(
    """
    buy {x}, call {n}, write to {n}, feed the {a}, clean the {t}, pay the bill, water the flowers,
    send the {t},
    meet {n}, visit {n}, bake a cake, repair the {t}, take the medicine, lock the door, return the {t},
    wash the {t},
    thank {n}, pack the {t}, book a table, close the window
    """
)
ROOMS = listed(
    "kitchen, bedroom, bathroom, hall, office, living room, garden, cellar, attic, garage, nursery"
)


def new_event(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(
        ("create_event", "add_event", "calendar_add", "new_event", "schedule", "add_to_calendar")
    )
    first, when = rng.choice(("title", "title", "name", "event")), rng.choice(("date", "date", "day"))
    what, day, hour = title(rng, split), any_day(rng), clock(rng)
    request = one_of(rng, ('[Add "{w}" to|Put "{w}" in|Put "{w}" into] my calendar on {d} at {h}.',
                           "[Plan|Schedule] a {w} on {d} at {h}.",
                           "[Make|Create] [an event|an entry]: {w}, {d}, {h}.",
                           "On {d} at {h} I have a {w}. [Put it in my calendar|Add it]."),
                     w=what, d=day, h=hour).replace(" a a", " an a").replace(" a e", " an e")  # fmt: skip
    offered = tool(
        name,
        vary(rng, "[Add|Write] [an event|an entry] [to|into] the calendar"),
        {first: STRING, when: STRING, "time": STRING},
    )
    call = ToolCall(name, {first: what, when: day, "time": hour})
    return ToolUse(offered, request, call, {"status": "ok", "id": rng.randint(1, 999)},
                   f"Done. The {what} is in your calendar on {day} at {hour}.", (what, day,
                                                                                 hour))  # fmt: skip


def any_day(rng: random.Random) -> str:
    return rng.choice(words.DAYS) if chance(rng, 0.4) else date(rng)


def events_of_day(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("list_events", "get_events", "calendar", "show_calendar", "read_calendar"))
    key, day = rng.choice(("date", "day")), any_day(rng)
    request = one_of(rng, ("What [is|do I have] in my calendar on {d}?",
                           "[Do I have|Are there] [any |]events on {d}?",
                           "[Show|List|Tell me] my events on {d}.", "What are my plans on {d}?"),
                           d=day)  # fmt: skip
    events = [{"title": title(rng, split), "time": clock(rng)} for _ in range(rng.choice((0, 1, 1, 2)))]
    found = words.join([f"{event['title']} at {event['time']}" for event in events])
    answer = f"On {day} you have: {found}." if events else f"You have nothing on {day}."
    offered = tool(name, vary(rng, "[List|Show|Read] the events of a [day|date]"), {key: STRING})
    contains = tuple(event["title"] for event in events) or ("nothing",)
    return ToolUse(offered, request, ToolCall(name, {key: day}), {"events": events}, answer, contains)


def reminder(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("set_reminder", "create_reminder", "remind_me", "add_reminder"))
    key, hour = rng.choice(("text", "text", "task", "message")), clock(rng)
    chore = chore_of(rng, split)
    request = one_of(rng, ("Remind me to {c} at {h}.",
                           "At {h} [I must|I have to] {c}. [Remind me|Please remind me].",
                           "[Set|Make] a reminder for {h}: {c}.", "Can you remind me at {h} to {c}?"),
                           c=chore, h=hour)  # fmt: skip
    offered = tool(
        name,
        vary(rng, "[Set a reminder|Remind the user] [at a time|for later]"),
        {key: STRING, "time": STRING},
    )
    return ToolUse(offered, request, ToolCall(name, {key: chore, "time": hour}), {"status": "ok"},
                   f"I will remind you to {chore} at {hour}.", (chore, hour))  # fmt: skip


def chore_of(rng: random.Random, split: Split) -> str:
    food = words.plural(task_words.food(rng, split))
    return rng.choice(CHORES).format(
        x=food, n=first_name(rng, split), a=task_words.animal(rng, split), t=task_words.thing(rng, split)
    )


def timer(rng: random.Random, split: Split) -> ToolUse:
    name, unit = (
        rng.choice(("set_timer", "start_timer", "timer")),
        rng.choice(("minutes", "minutes", "seconds", "hours")),
    )
    length = rng.randint(2, 90)
    request = one_of(rng, ("[Set|Start] a timer [for|of] {n} {u}.", "[Wake me|Call me|Ring] in {n} {u}.",
                           "Timer: {n} {u}."),
                     n=length, u=unit)  # fmt: skip
    offered = tool(name, vary(rng, "[Set|Start] a timer[ in {u}|]", u=unit), {unit: INTEGER})
    return ToolUse(offered, request, ToolCall(name, {unit: length}), {"status": "started"},
                   f"The timer is set for {length} {unit}.", (str(length), unit))  # fmt: skip


def email(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("send_email", "send_mail", "email", "send_message"))
    keys = rng.choice((("to", "subject"), ("recipient", "subject"), ("to", "text"), ("receiver", "message")))
    someone = first_name(rng, split)
    to = someone if chance(rng, 0.5) else f"{someone.lower()}@{invented_name(rng, split).lower()}.com"
    text = one_of(rng, ("[I am late|I am on the way|See you soon|Thank you|Call me|Happy birthday]",
                        "the {t} is [here|ready|broken]", "[meet me|we meet] at {h}", "please bring {f}"),
                  t=task_words.thing(rng, split), h=clock(rng), f=words.plural(task_words.food(rng,
                                                                                     split)))  # fmt: skip
    request = one_of(rng, ('[Send|Write] [an email|a mail|a message] to {o}: "{x}"',
                           '[Email|Write to|Message] {o} with the text "{x}".',
                           '[Tell|Write to] {o}: "{x}"'), o=to, x=text)  # fmt: skip
    offered = tool(
        name,
        vary(rng, "Send [an email|a mail|a message] to [someone|a person]"),
        {keys[0]: STRING, keys[1]: STRING},
    )
    return ToolUse(offered, request, ToolCall(name, {keys[0]: to, keys[1]: text}), {"status": "sent"},
                   f"I sent the message to {to}.", (to,))  # fmt: skip


def music(rng: random.Random, split: Split) -> ToolUse:
    name, key = (
        rng.choice(("play_music", "play_song", "play", "start_music")),
        rng.choice(("song", "title", "artist")),
    )
    song = (
        f"{invented_name(rng, split)} {capital(task_words.thing(rng, split))}"
        if key != "artist"
        else f"{company(rng, split)}"
    )
    request = one_of(
        rng,
        (
            "[Play|Please play|Start] {s}.",
            "I want to [hear|listen to] {s}.",
            "Put on {s}[, please|].",
        ),
        s=song,
    )
    offered = tool(name, vary(rng, "Play [music|a song] by its {k}", k=key), {key: STRING})
    return ToolUse(
        offered, request, ToolCall(name, {key: song}), {"playing": song}, f"Now playing {song}.", (song,)
    )


def lights(rng: random.Random, split: Split) -> ToolUse:
    name = rng.choice(("set_light", "switch_light", "light", "control_light"))
    key, state, room = (
        rng.choice(("state", "power")),
        rng.choice(("on", "off")),
        words.pick(rng, split, ROOMS),
    )
    request = one_of(rng, ("[Turn|Switch] {s} the light in the {r}.",
                           "[Turn|Switch] the light in the {r} {s}.",
                           "Light {s} in the {r}[, please|]."), s=state, r=room)  # fmt: skip
    offered = tool(
        name,
        vary(rng, "[Turn|Switch] the light in a room on or off"),
        {"room": STRING, key: choice_of("on", "off")},
    )
    return ToolUse(offered, request, ToolCall(name, {"room": room, key: state}), {"status": "ok"},
                   f"The light in the {room} is {state}.", (room, state))  # fmt: skip
