"""The one fake: a deterministic backend whose next token depends on every token before it."""

from __future__ import annotations

import os
import signal
import threading
import zlib

from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.step import Close, Open, Sample, Span, Step, StepResult, TokenLogprob

VOCAB_SIZE = 512
END_TOKEN = 1
FAKE_INFO = ModelInfo(
    path="fake.gguf",
    description="fake",
    architecture="fake",
    num_parameters=1,
    file_bytes=1,
    vocab_size=VOCAB_SIZE,
    context_trained=4096,
    kv_tokens=4096,
    kv_bytes_per_token=1,
    kv_type="f16",
    max_seqs=64,
    max_step_tokens=256,
    max_step_outputs=128,
    threads=1,
    end_tokens=frozenset({END_TOKEN}),
    can_trim=True,
)


def next_token(tokens: list[int]) -> int:
    """A pure function of the whole context: a lower-case letter, a space or (rarely) another byte."""
    digest = zlib.crc32(repr(tokens).encode())
    return 2 + (digest >> 8) % 256 if digest % 16 == 0 else 2 + ord("abcdefghij klmnopq"[digest % 18])


class FakeBackend:
    """Keeps the tokens of every slot as its "KV cells" and refuses what a real pool would refuse.

    Token t >= 2 is the byte t-2 (those from 258 on are nothing); 1 ends. `kill_on` makes the process kill
    itself in the step that computes this token; `step_s` makes a step take its time.
    """

    def __init__(
        self, info: ModelInfo = FAKE_INFO, *, kill_on: int | None = None, step_s: float = 0.0
    ) -> None:
        self.info = info
        self.cells: dict[int, list[int]] = {}
        self.opened: dict[int, Open] = {}
        self.num_steps = 0
        self._kill_on = kill_on
        self._step_s = step_s
        self._interrupted = threading.Event()

    def execute(self, step: Step) -> StepResult:
        self.num_steps += 1
        for verb in step.verbs:
            self._do(verb)
        if self._step_s:
            self._interrupted.wait(self._step_s)
            if self._interrupted.is_set():
                self._interrupted.clear()
                return StepResult(interrupted=True)
        assert step.num_tokens <= self.info.max_step_tokens
        for span in step.spans:
            self._compute(span)
        assert sum(map(len, self.cells.values())) <= self.info.kv_tokens, "the pool is full"
        return StepResult(
            samples={s.slot: self._sample(s.slot) for s in step.spans if s.sample},
            scores={s.slot: tuple(TokenLogprob(t, -1.0) for t in s.targets) for s in step.spans if s.targets},
        )

    def interrupt(self) -> None:
        self._interrupted.set()

    def piece(self, token: int) -> bytes:
        return bytes([token - 2]) if 2 <= token < 258 else b""

    def close(self) -> None:
        self.cells.clear()

    def _do(self, verb: Open | Close) -> None:
        if isinstance(verb, Open):
            assert verb.slot not in self.cells, f"slot {verb.slot} is taken"
            self.cells[verb.slot] = []
            self.opened[verb.slot] = verb
        else:
            del self.cells[verb.slot]
            del self.opened[verb.slot]

    def _compute(self, span: Span) -> None:
        cells = self.cells[span.slot]
        assert len(cells) == span.start, (
            f"slot {span.slot} has {len(cells)} cells, span starts at {span.start}"
        )
        if self._kill_on in span.tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        cells.extend(span.tokens)

    def _sample(self, slot: int) -> Sample:
        token = next_token(self.cells[slot])
        opened = self.opened[slot]
        if opened.top_logprobs is None:
            return Sample(token)
        top = tuple((token + i, -1.0 - i) for i in range(opened.top_logprobs))
        return Sample(token, TokenLogprob(token, -1.0, top))
