"""Conversations around tools: the offered ones in any order, the call, the result and the answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from demo_model.corpus import paragraphs, recall
from demo_model.corpus.example import Example, Role, Split, Turn
from demo_model.corpus.phrasing import assistant, chance, compact, system, user
from demo_model.corpus.tools import actions, lookups
from demo_model.corpus.tools import none as no_tool
from demo_model.corpus.tools.invented import invented_tool
from demo_model.corpus.tools.use import Draw, ToolUse, name_of

MAIN: tuple[Draw, ...] = (
    lookups.weather,
    lookups.calculator,
    lookups.search,
    actions.new_event,
    actions.events_of_day,
)
MORE: tuple[Draw, ...] = (
    lookups.local_time, lookups.currency, lookups.translation, lookups.price, actions.reminder, actions.timer,
    actions.email, actions.music, actions.lights,
)  # fmt: skip
NEAR: tuple[tuple[Draw, ...], ...] = (
    (actions.new_event, actions.reminder, actions.timer, actions.events_of_day),
    (lookups.weather, lookups.local_time),
    (lookups.calculator, lookups.currency),
)
"""Kinds of which one could stand in for another: if one is missing, the others must not be offered."""
ANSWERS_ANYTHING: tuple[Draw, ...] = (lookups.search, invented_tool)
MANNERS = ("You are a helpful assistant.", "Use the tools when you need them.", "You can use tools.",
           "Call a tool if it helps.", "You help the user with tools.", "Be brief.")  # fmt: skip


def any_kind(rng: random.Random) -> Draw:
    way = rng.random()
    if way < 0.25:
        return invented_tool
    return rng.choice(MAIN) if way < 0.7 else rng.choice(MORE)


def offered(
    rng: random.Random,
    split: Split,
    used: Sequence[ToolUse],
    kinds: Sequence[Draw],
    avoid: Sequence[Draw] = (),
) -> tuple[Mapping[str, object], ...]:
    """The used tools and up to four others, all of different kinds and names, in any order."""
    tools = [
        use.tool for place, use in enumerate(used) if use.tool not in [other.tool for other in used[:place]]
    ]
    others = [kind for kind in (*MAIN, *MORE) if kind not in kinds and kind not in avoid]
    more = rng.sample(others, rng.randint(0 if tools else 1, 4))
    more += [invented_tool] if chance(rng, 0.3) and invented_tool not in avoid else []
    for kind in more:
        one = kind(rng, split).tool
        if len(tools) < 5 and name_of(one) not in [name_of(other) for other in tools]:
            tools.append(one)
    rng.shuffle(tools)
    return tuple(tools)


def wishes(rng: random.Random, split: Split) -> tuple[list[ToolUse], list[Draw]]:
    """One thing asked for, or two: with the same tool, or with different ones."""
    if chance(rng, 0.06):
        return lookups.two_weathers(rng, split), [lookups.weather]
    kinds = [any_kind(rng)]
    if chance(rng, 0.12):
        kinds.append(rng.choice([kind for kind in (*MAIN, *MORE) if kind not in kinds]))
    uses = [kind(rng, split) for kind in kinds]
    return (uses, kinds) if len({use.call.name for use in uses}) == len(uses) else (uses[:1], kinds[:1])


def request_of(rng: random.Random, uses: Sequence[ToolUse]) -> str:
    if len(uses) == 1:
        return uses[0].request
    between = rng.choice((" ", " Also: ", " And then: ", "\n"))
    return between.join(use.request for use in uses if use.request)


def asked_and_called(rng: random.Random, uses: Sequence[ToolUse]) -> tuple[Turn, ...]:
    return user(request_of(rng, uses)), Turn(Role.ASSISTANT, calls=tuple(use.call for use in uses))


def told_and_answered(uses: Sequence[ToolUse]) -> tuple[Turn, ...]:
    results = tuple(Turn(Role.TOOL, compact(use.result)) for use in uses)
    return (*results, assistant(" ".join(use.answer for use in uses)))


def call(rng: random.Random, split: Split) -> Example:
    """Ends with the call; sometimes behind a chat or an earlier call and its answer."""
    uses, kinds = wishes(rng, split)
    before, used, before_kinds = history(rng, split, kinds)
    turns = (*manners(rng), *before, *asked_and_called(rng, uses))
    tools = offered(rng, split, [*uses, *used], [*kinds, *before_kinds])
    calls = [{"name": use.call.name, "arguments": dict(use.call.arguments)} for use in uses]
    return Example("tool_call", turns, tools=tools, expected={"calls": calls})


def history(
    rng: random.Random, split: Split, kinds: Sequence[Draw]
) -> tuple[tuple[Turn, ...], list[ToolUse], list[Draw]]:
    way = rng.random()
    if way < 0.12:
        return no_tool.chat(rng, split), [], []
    if way < 0.25 and invented_tool not in kinds:
        kind = rng.choice([kind for kind in (*MAIN, *MORE) if kind not in kinds])
        use = kind(rng, split)
        return (*asked_and_called(rng, [use]), *told_and_answered([use])), [use], [kind]
    return (), [], []


def result(rng: random.Random, split: Split) -> Example:
    """Ends with the answer that uses what the tools returned."""
    uses, kinds = wishes(rng, split)
    turns = (*manners(rng), *asked_and_called(rng, uses), *told_and_answered(uses))
    contains = [text for use in uses for text in use.contains]
    return Example(
        "tool_result", turns, tools=offered(rng, split, uses, kinds), expected={"contains": contains}
    )


def none(rng: random.Random, split: Split) -> Example:
    """A chat, a question about a text or about what was told; or a wish that no offered tool can fulfil."""
    way = rng.random()
    avoid: tuple[Draw, ...] = ()
    if way < 0.4:
        turns = no_tool.chat(rng, split)
    elif way < 0.7:
        kind = rng.choice([kind for kind in (*MAIN, *MORE) if kind is not lookups.calculator])
        turns = no_tool.without_tool(rng, kind(rng, split))
        avoid = (kind, *ANSWERS_ANYTHING, *(other for group in NEAR if kind in group for other in group))
    else:
        avoid = (lookups.calculator,)
        turns = (paragraphs.MAKERS["paragraph_qa"] if way < 0.88 else recall.make)(rng, split).turns
        turns = turns or no_tool.chat(rng, split)
    manner = manners(rng) if turns[0].role is not Role.SYSTEM else ()
    tools = offered(rng, split, [], [], avoid)
    return Example("tool_none", (*manner, *turns), tools=tools, expected={"calls": []})


def manners(rng: random.Random) -> tuple[Turn, ...]:
    return (system(rng.choice(MANNERS)),) if chance(rng, 0.3) else ()
