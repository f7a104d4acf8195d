"""Drives a scheduler with the fake backend, the ledger's self-check after every step."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Step
from openai_cpu_server.scheduler.budget import TokenBudget
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.policy import PriorityPolicy
from openai_cpu_server.scheduler.scheduler import Limits, Scheduler
from tests.fakes import FAKE_INFO, FakeBackend, next_token

Spans = dict[str, int]
"""Tokens that each request computed in a step."""


def request(
    name: str, prompt: int = 4, output: int = 4, priority: Priority = Priority.INTERACTIVE, **more: object
) -> GenerationRequest:
    tokens = tuple((sum(name.encode()) + i) % 200 + 2 for i in range(prompt))
    base = GenerationRequest(
        id=name, tokens=tokens, max_tokens=output, sampling=Sampling(seed=1), priority=priority
    )
    return msgspec.structs.replace(base, **more)


def alone(asked: GenerationRequest) -> list[int]:
    """What the request generates on an idle machine."""
    tokens = list(asked.tokens)
    for _ in range(asked.max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(asked.tokens) :]


class Driver:
    """A scheduler, a backend, and what came out. Requests end when they have all their tokens."""

    def __init__(
        self, *, slots: int = 8, kv_tokens: int = 1024, decoding: int = 32, idle: int = 64, outputs: int = 64
    ) -> None:
        info = msgspec.structs.replace(
            FAKE_INFO, max_seqs=slots, kv_tokens=kv_tokens, max_step_tokens=max(idle, slots + 16)
        )
        self.backend = FakeBackend(info)
        self.scheduler = Scheduler(
            limits=Limits(slots, info.max_step_tokens, outputs),
            ledger=KVLedger(kv_tokens // 16, 16),
            budget=TokenBudget(decoding=decoding, idle=idle),
            policy=PriorityPolicy(),
        )
        self.outputs: dict[str, list[int]] = {}
        self.num_scores: dict[str, int] = {}
        self.finished: list[str] = []

    def submit(self, *requests: GenerationRequest) -> None:
        for one in requests:
            self.scheduler.submit(one)
            self.outputs[one.id] = []
            self.num_scores[one.id] = 0

    def cancel(self, name: str) -> None:
        sequence = self.scheduler.get(name)
        if sequence is not None:
            self.scheduler.finish(sequence)

    def step(self, *, interrupt: bool = False) -> Spans:
        step = self.scheduler.schedule()
        names = self.scheduler.participants(step)
        if interrupt:
            self.backend.execute(Step(verbs=step.verbs))
            self.scheduler.apply(
                step, msgspec.structs.replace(self.backend.execute(Step()), interrupted=True)
            )
        else:
            self._apply(step)
        self.scheduler.check()
        return {name: len(span.tokens) for name, span in zip(names, step.spans, strict=True)}

    def run(self, max_steps: int = 10_000) -> list[Spans]:
        steps = []
        while self.scheduler.has_work:
            steps.append(self.step())
            assert len(steps) < max_steps, "starved"
        return steps

    def _apply(self, step: Step) -> None:
        for advance in self.scheduler.apply(step, self.backend.execute(step)):
            name = advance.sequence.request.id
            self.num_scores[name] += len(advance.scores)
            if advance.sample is not None:
                self.outputs[name].append(advance.sample.token)
            if advance.sequence.remaining == 0 and (advance.sample or advance.sequence.pending == 0):
                self.scheduler.finish(advance.sequence)
                self.finished.append(name)
