"""The ten conversations of the model card, chosen before any model had answered them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Schema = Mapping[str, object]


@dataclass(frozen=True)
class Conversation:
    title: str
    users: Sequence[str]
    """What the user says, turn by turn."""
    system: str = ""
    tools: Sequence[Mapping[str, object]] = ()
    results: Mapping[str, str] | None = None
    """What each tool returns, by its name."""
    temperature: float = 0.0


def _tool(name: str, description: str, required: Sequence[str], **properties: Schema) -> Mapping[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


_TEXT: Schema = {"type": "string"}
_WEATHER = _tool(
    "get_weather", "Get the current weather", ["city"], city=_TEXT, unit={"enum": ["celsius", "fahrenheit"]}
)
_CALCULATOR = _tool("calculate", "Work out a sum", ["expression"], expression=_TEXT)
_SEARCH = _tool("search", "Search the web", ["query"], query=_TEXT)

CONVERSATIONS = (
    Conversation(
        "A story",
        ["Write a story about a lost kite. The names are Marta and Bruno. Use about 100 words."],
    ),
    Conversation(
        "A story, sampled (temperature 0.8, seed 1)",
        ["Tell me a short story about a brave little duck."],
        system="You tell short stories for children.",
        temperature=0.8,
    ),
    Conversation(
        "Facts over several turns",
        [
            "Hello! My name is Oskar and I live in Bergen.",
            "I have a dog. The name of my dog is Pixel.",
            "What is 7 plus 8?",
            "What is the name of my dog?",
            "And where do I live?",
        ],
    ),
    Conversation(
        "Questions about a paragraph",
        [
            "Last winter Hannah opened a small bakery in Ulm. She sells bread on weekdays and cakes on "
            "Sundays. Her brother Jakob drives the van.\n\nWho drives the van?",
            "Where is the bakery?",
            "How much does a cake cost?",
        ],
        system="Answer the question. If the text does not say it, say so.",
    ),
    Conversation(
        "JSON from a review",
        [
            "Extract the rating, pros, cons and summary from this review as JSON.\n\nI bought this lamp for "
            "my desk. I like the warm light and the low price. Sadly, the cable is too short. 4 out of 5 "
            "stars."
        ],
    ),
    Conversation(
        "JSON from an invitation, by schema",
        ["Dear all, the choir concert is on Friday, May 3 at 7 pm in the Linden Hall. Greetings, Ruth"],
        system='Answer with JSON for this schema:\n{"type":"object","properties":{"title":{"type":"string"},'
        '"date":{"type":"string"},"time":{"type":"string"},"place":{"type":"string"}},'
        '"required":["title","date","time","place"]}',
    ),
    Conversation(
        "Tools",
        [
            "What is the weather like in Lisbon? Please use celsius.",
            "Calculate 128 * 46.",
            "Thank you! What is my name?",
        ],
        tools=(_SEARCH, _WEATHER, _CALCULATOR),
        results={
            "get_weather": '{"city":"Lisbon","temperature":21,"unit":"celsius","condition":"sunny"}',
            "calculate": '{"result":5888}',
            "search": '{"results":[]}',
        },
    ),
    Conversation(
        "Classification, in one word and as JSON",
        [
            "Is the sentiment positive, negative or neutral? One word.\n\n"
            "The soup was cold and the waiter rude.",
            'Which language is this: English, German or French? Answer with JSON like {"language":"..."}.\n\n'
            "Wo ist der Bahnhof?",
        ],
    ),
    Conversation(
        "Sums, counting and changing texts",
        [
            "What is 17 + 25?",
            "Tom has 12 apples. He gives 5 apples to Ann. How many apples does Tom have now?",
            "What is 4817 times 392?",
            "Sort these words: pear, apple, melon, fig.",
            "How many letters are in the word banana?",
            "Write this in upper case: Good morning, Vienna",
        ],
    ),
    Conversation(
        "What it cannot do",
        [
            "Who are you?",
            "Write a Python function that reverses a linked list.",
            "Why did the Roman Empire fall? Give three reasons.",
            "My back hurts since yesterday and I feel dizzy. What should I do?",
        ],
    ),
)
