"""Real text for trained models: Python's manual, and questions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from bench.prompts import Prompts, RandomPrompts
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.vocabulary import Vocabulary

_QUESTIONS = (
    "What is the main point of this?",
    "Can you explain that to a beginner, please?",
    "Which mistakes should I avoid here?",
    "Summarise the text above in two sentences.",
    "Give me a short example of how to use it.",
    "Why was it done in this way?",
    "Write a friendly answer to a colleague who asks about this.",
    "What would you look up next, and why?",
    "Is there a simpler way to say the same?",
    "List three facts from the text above.",
    "How would you test that this is true?",
    "What does the author not tell us?",
)


def prompts_for(model: Path) -> Prompts:
    if talks(model):
        with Vocabulary.open(model) as vocabulary:
            return Prose.of(vocabulary)
    return RandomPrompts()


def talks(model: Path) -> bool:
    header = GgufHeader(model)
    is_random = (header.get_str("general.name") or "").startswith("random ")
    return not is_random and header.get_str("tokenizer.chat_template") is not None


class Prose:
    """Prompts from one long text, whose tokens depend on Python's version."""

    def __init__(self, text: Sequence[int], questions: Sequence[Sequence[int]]) -> None:
        self._text = tuple(text)
        self._questions = [tuple(question) for question in questions]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Prose:
        def encoded(text: str) -> list[int]:
            return vocabulary.encode(text, add_special=False, parse_special=False)

        questions = [encoded(f"\n\n{question}\n\n") for question in _QUESTIONS]
        return cls(encoded("\n".join(topics.values())), questions)

    def text(self, count: int, *seed: object) -> tuple[int, ...]:
        """Return a passage. Raises ValueError if the text is shorter."""
        start = random.Random(repr(seed)).randint(0, len(self._text) - count)
        return self._text[start : start + count]

    def question(self, count: int, *seed: object) -> tuple[int, ...]:
        """Return a passage and a question about it, or only the question's end."""
        question = random.Random(repr((seed, "question"))).choice(self._questions)[-count:]
        return self.text(count - len(question), *seed) + question
