"""The server's engine in this process: many prompts are answered at once, as the scheduler batches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from openai_cpu_server.contract.messages import EngineOptions, FinishReason, StepDone, Submit, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.engine.build import build_core
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.prompt.chat import needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate

_MAX_SEQS = 16
"""A small model spends its time on attention: each token looks at the cells of all that run with it."""
_GREEDY = Sampling(seed=0, temperature=0.0)

Told = Callable[[int, int], None]
"""Answers finished and answers in all."""


@dataclass(frozen=True)
class Asked:
    """A conversation in OpenAI's messages, whose next turn is the model's."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] = ()
    max_tokens: int = 320
    sampling: Sampling = _GREEDY


@dataclass(frozen=True)
class Answer:
    text: str
    """Control tokens such as `<|tool_call|>` are written out."""
    is_whole: bool
    """The model ended it, not the limit."""
    num_tokens: int


class Engine:
    """Its opener closes it. Raises StartupError for a file that is no chat model."""

    def __init__(self, model: Path, *, threads: int | None = None, max_seqs: int = _MAX_SEQS) -> None:
        options = EngineOptions(
            model_path=str(model),
            max_seqs=max_seqs,
            kv_tokens=max_seqs * 1024,
            threads=threads,
            threads_batch=threads,
        )
        self._vocabulary = Vocabulary.open(model)
        self._template = _template(self._vocabulary)
        self._backend = LlamaBackend.load(options, lambda fraction: None)
        self._core = build_core(options, self._backend, None)

    def answers(self, asked: Sequence[Asked], told: Told = lambda done, total: None) -> list[Answer]:
        """The answers in the order of the questions. Raises RuntimeError if the engine fails at one."""
        for number, one in enumerate(asked):
            self._core.handle(Submit(request=self._request(str(number), one)))
        texts = [""] * len(asked)
        answers: dict[int, Answer] = {}
        while self._core.has_work:
            for event in self._events():
                number = int(event.id)
                texts[number] += event.text
                if event.finish is not None:
                    answers[number] = _answer(texts[number], event)
                    told(len(answers), len(asked))
        return [answers[number] for number in range(len(asked))]

    def prompt(self, asked: Asked) -> str:
        return render_chat(self._template, asked.messages, tools=asked.tools)

    def _events(self) -> list[TokenEvent]:
        steps = (event for event in self._core.step() if isinstance(event, StepDone))
        return [event for step in steps for event in step.events]

    def _request(self, name: str, asked: Asked) -> GenerationRequest:
        text = self.prompt(asked)
        special = needs_special_tokens(text, bos_text=self._vocabulary.bos_text)
        tokens = self._vocabulary.encode(text, add_special=special, parse_special=True)
        room = self._backend.info.context_limit - len(tokens)
        return GenerationRequest(
            id=name,
            tokens=tuple(tokens),
            max_tokens=max(0, min(asked.max_tokens, room)),
            sampling=asked.sampling,
            priority=Priority.BATCH,
            show_control_tokens=True,
        )

    def close(self) -> None:
        self._backend.close()
        self._vocabulary.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _template(vocabulary: Vocabulary) -> ChatTemplate:
    source = vocabulary.chat_template
    if source is None:
        raise StartupError("the model has no chat template")
    return ChatTemplate(source, bos_text=vocabulary.bos_text, eos_text=vocabulary.eos_text)


def _answer(text: str, last: TokenEvent) -> Answer:
    finish = last.finish
    assert finish is not None
    if finish.reason is FinishReason.ERROR:
        raise RuntimeError(f"the engine failed at request {last.id}: {finish.error}")
    return Answer(text, finish.reason is FinishReason.STOP, finish.output_tokens)
