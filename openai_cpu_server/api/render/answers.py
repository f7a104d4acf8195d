"""Answers gathered for clients that do not stream, and the best of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from openai_cpu_server.api.calls.call import Call, PartsReader
from openai_cpu_server.contract.messages import Finish, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.contract.thinking import OutputPart
from openai_cpu_server.prompt.tool_formats import Part


@dataclass
class Answer:
    """All that one request brought. It is complete when `finish` is there."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    """What was thought before the texts."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    answer_start: int = 0
    """How many of its tokens belong to no answer; known when it is complete."""
    finish: Finish | None = None

    def add(self, event: TokenEvent) -> None:
        (self.texts if event.part is OutputPart.ANSWER else self.thoughts).append(event.text)
        self.answer_start = event.answer_start or 0
        self.logprobs.extend(event.logprobs)
        self.prompt_logprobs.extend(event.prompt_logprobs)
        self.finish = event.finish

    @property
    def text(self) -> str:
        """All but the thoughts."""
        return "".join(self.texts)

    def parts(self, reader: PartsReader) -> list[Part]:
        return reader.read_texts("".join(self.thoughts), self.text)

    @property
    def score(self) -> float:
        """The mean log-probability of the tokens shown; an answer without tokens is the worst."""
        if not self.logprobs:
            return float("-inf")
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs)


def shown(call: Call, answers: Mapping[str, Answer]) -> list[tuple[int, Answer]]:
    """The answers to show, as (index of the request, answer), the best `n` of each prompt, best first."""
    ranked: list[tuple[int, Answer]] = []
    for start in range(0, len(call.requests), call.best_of):
        group = [(i, answers[call.requests[i].id]) for i in range(start, start + call.best_of)]
        if call.best_of > call.n:
            group.sort(key=lambda pair: -pair[1].score)
        ranked += group[: call.n]
    return ranked
