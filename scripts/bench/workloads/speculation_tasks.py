"""The tasks of *speculation*: random tokens, and conversations for a model that has learned to talk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_model.corpus.example import Example, Split
from demo_model.corpus.mixture import whole_mixture

from bench import schemas
from bench.asking import Ask, Message
from bench.prompts import random_tokens
from openai_cpu_server.llama.gguf.header import GgufHeader

_CORPUS_SEED = 7
_ANSWER_TOKENS = 320
"""The most tokens of an answer; the model ends its answers itself."""
_QUOTING = ("transform", "paragraph_qa")
_JSON = ("extract_review", "extract_order", "extract_contact", "extract_event")
_STORIES = ("stories",)
_LONG = 40
"""The fewest characters of an answer that is worth drafting."""


@dataclass(frozen=True)
class Task:
    what: str
    clients: int
    asks: Callable[[int, int], Sequence[Ask]]
    """The requests of a round, with so many output tokens each if nothing else ends them."""


def tasks(model: Path) -> tuple[Task, ...]:
    return TASKS + TEXT_TASKS if _talks(model) else TASKS


def draft_model(model: Path) -> Path | None:
    """The draft model that was made for this model, as demo-draft.gguf for demo.gguf."""
    path = model.with_name(f"{model.stem}-draft{model.suffix}")
    return path if path.is_file() else None


def _talks(model: Path) -> bool:
    """Whether the model can talk, unlike those that make_model.py makes of random weights."""
    header = GgufHeader(model)
    is_random = (header.get_str("general.name") or "").startswith("random ")
    return not is_random and header.get_str("tokenizer.chat_template") is not None


def quoting(number: int, tokens: int, clients: int) -> list[Ask]:
    """Greedy answers, long enough for an untrained model to begin to repeat itself."""
    found = []
    for i in range(clients):
        passage = random_tokens(60, "speculation", number, i)
        found.append(Ask(prompt=passage * 3 + passage[:12], max_tokens=3 * tokens, seed=i, temperature=0.0))
    return found


def filling_json(number: int, tokens: int, clients: int) -> list[Ask]:
    return [
        Ask(
            prompt=random_tokens(80, "speculation json", number, i),
            max_tokens=7 * tokens,
            seed=i,
            schema=schemas.ALL[i % len(schemas.ALL)],
        )
        for i in range(clients)
    ]


def free(number: int, tokens: int, clients: int) -> list[Ask]:
    """Sampled answers, in which hardly anything can be predicted."""
    return [
        Ask(prompt=random_tokens(80, "speculation free", number, i), max_tokens=tokens, seed=i)
        for i in range(clients)
    ]


def conversations(kinds: Sequence[str], number: int, count: int, temperature: float) -> list[Ask]:
    """Conversations of the demo model's kinds that it has not seen.
    The kinds take turns; no two rounds share one."""
    found = itertools.islice(_examples(kinds), number * count, (number + 1) * count)
    return [
        Ask(messages=_messages(example), max_tokens=_ANSWER_TOKENS, seed=i, temperature=temperature)
        for i, example in enumerate(found)
    ]


def _examples(kinds: Sequence[str]) -> Iterator[Example]:
    mixture = whole_mixture(_CORPUS_SEED)
    for i in itertools.count():
        example = mixture.document_of(kinds[i % len(kinds)], Split.HELD_OUT, i)
        if example.text is None and not example.tools and len(example.turns[-1].text) >= _LONG:
            yield example


def _messages(example: Example) -> tuple[Message, ...]:
    """The messages without the last turn, which is the answer."""
    return tuple({"role": turn.role.value, "content": turn.text} for turn in example.turns[:-1])


def _talk(what: str, clients: int, kinds: Sequence[str], temperature: float) -> Task:
    """A dozen tokens of output, as which --quick asks for few, stand for an answer."""
    return Task(
        f"{what}, {clients} {'client' if clients == 1 else 'clients'}",
        clients,
        lambda number, tokens: conversations(kinds, number, clients * max(2, tokens // 12), temperature),
    )


TASKS = (
    Task("random tokens, quoted, 1 client", 1, lambda number, tokens: quoting(number, tokens, 1)),
    Task("random tokens, quoted, 4 clients", 4, lambda number, tokens: quoting(number, tokens, 4)),
    Task("random tokens, quoted, 16 clients", 16, lambda number, tokens: quoting(number, tokens, 16)),
    Task("JSON by schema, 1 client", 1, lambda number, tokens: filling_json(number, tokens, 2)),
    Task("JSON by schema, 8 clients", 8, lambda number, tokens: filling_json(number, tokens, 8)),
    Task("random tokens, free, 1 client", 1, lambda number, tokens: free(number, tokens, 1)),
    Task("random tokens, free, 16 clients", 16, lambda number, tokens: free(number, tokens, 16)),
)
TEXT_TASKS = tuple(
    _talk(what, clients, kinds, temperature)
    for what, kinds, temperature in (
        ("answers that quote", _QUOTING, 0.0),
        ("JSON of what is told", _JSON, 0.0),
        ("stories", _STORIES, 0.8),
    )
    for clients in (1, 8)
)
