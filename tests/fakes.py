"""The one fake: a deterministic backend whose next token depends on every token before it."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from openai_cpu_server.contract.embedding import EmbedResult
from openai_cpu_server.contract.engine import LiveRequest, RequestState
from openai_cpu_server.contract.media import (
    MeasuredMedia,
    MediaEmbeddings,
    MediaSize,
    PictureSize,
    is_row,
    not_taken,
)
from openai_cpu_server.contract.messages import Experiment
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter, ModelInfo, ModelKind
from openai_cpu_server.contract.request import Constraint, Priority, ReasoningTracker, Thinking
from openai_cpu_server.contract.step import (
    CacheFileLimit,
    Close,
    Drafted,
    Drop,
    Encode,
    Open,
    Restore,
    RestoreState,
    Sample,
    Save,
    SavedBlock,
    SaveState,
    ShareCells,
    Span,
    Step,
    StepResult,
    TokenLogprob,
    Verb,
    num_right,
)
from openai_cpu_server.errors import AdapterFailed, ConstraintFailed, EmbeddingFailed

CONTROL_TOKEN = 300  # silent, unless control tokens are shown
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
)
STATEFUL = {"state_bytes": 100, "max_draft": 0}
"""Fields of a model whose sequences have a state beside their cells."""

FAKE_EMBEDDER = msgspec.structs.replace(
    FAKE_INFO,
    kind=ModelKind.EMBEDS,
    embedding_size=16,
    max_input_tokens=64,
    context_trained=64,
    kv_tokens=0,
    kv_bytes_per_token=0,
)
FAKE_RERANKER = msgspec.structs.replace(FAKE_EMBEDDER, kind=ModelKind.RERANKS, embedding_size=1)


FAKE_LIVE = LiveRequest(
    id="r/0",
    priority=Priority.INTERACTIVE,
    state=RequestState.RUNNING,
    prompt_tokens=1,
    output_tokens=0,
    age_s=0.0,
    client="",
    position=None,
    first_token_ms=None,
)  # a request as the engine reports it


class FakeThreads:
    """Threads whose counters a test sets; by default there is one, on an idle machine."""

    def __init__(self, most: int = 1) -> None:
        self.most = self.count = most
        self.waits: dict[int, float] = {}
        self.idle = self.throttled = 0.0

    def use(self, count: int) -> None:
        assert 1 <= count <= self.most
        self.count = count

    def waits_s(self) -> dict[int, float]:
        return dict(self.waits)

    def idle_s(self) -> float:
        return self.idle

    def throttled_s(self) -> float:
        return self.throttled


class Panic(BaseException):
    """Exception such as Rust code raises for a bug."""


STATEFUL_INFO = msgspec.structs.replace(FAKE_INFO, **STATEFUL)

SPECULATION: dict[str, dict[str, Any]] = {
    "off": {"speculation": "off"},
    "auto": {},
    "always": {"experiment": Experiment(always_drafts=True)},
}  # amount of drafting -> fields of `EngineOptions`


def next_token(tokens: list[int]) -> int:
    """Return the token after this context: a lower-case letter, a space or (rarely) another byte."""
    digest = _digest(tokens)
    return 2 + (digest >> 8) % 256 if digest % 16 == 0 else 2 + ord("abcdefghij klmnopq"[digest % 18])


def _digest(tokens: list[int]) -> int:
    return zlib.crc32(array("Q", tokens).tobytes())


def adapted(adapter: str | None, tokens: list[int]) -> list[int]:
    """Return the input of `next_token` for a model with this adapter."""
    return tokens if adapter is None else [zlib.crc32(adapter.encode()), *tokens]


def pattern_of(constraint: Constraint) -> str | None:
    """Return a client's grammar from the Lark that the server makes of it."""
    return constraint.grammar and constraint.grammar.removeprefix("%llguidance {}\n\nstart: ")


def forced_token(constraint: Constraint, output: list[int]) -> int | None:
    """Return the only token that may follow the output, or None if any may.

    The fake's grammars are patterns: `?` is any token, `*` some copies of the one before, `!` a failure.
    Other characters stand for themselves; the end of the pattern ends the output. A pattern with `(` is
    broken. `%` makes the backend panic, and `#` kills it.
    """
    pattern = pattern_of(constraint)
    if pattern is not None and "(" in pattern:
        raise ConstraintFailed("the pattern is broken")
    if constraint.thinking is not None:
        answer = _answer_after_thoughts(constraint.thinking, output)
        if not isinstance(answer, list):
            return answer
        output = answer
    expected: list[int | None] = list(constraint.opening)
    for sign in pattern or "":
        if len(expected) > len(output):
            break
        if sign == "!":
            raise ConstraintFailed("the pattern has failed")
        expected += _expansion(sign, output[len(expected) - 1 : len(expected)])
    if len(output) < len(expected):
        return expected[len(output)]
    return None if pattern is None else END_TOKEN


def _answer_after_thoughts(thinking: Thinking, output: list[int]) -> list[int] | int | None:
    """Return the answer's tokens; during the thoughts, the only token that may follow, or None if any may."""
    thoughts = ReasoningTracker(
        thinking.begin, thinking.end, budget=thinking.budget, ends_at=thinking.ends_at
    )
    forced = thinking.opening
    for index in range(len(output) + 1):
        if not forced and thoughts.is_used_up:
            forced = thinking.closing
        if index == len(output):
            break
        if thoughts.read(piece_of(output[index])) is not None:
            return output[index + 1 :]
        forced = forced[1:]
    return forced[0] if forced else None


def piece_of(token: int) -> bytes:
    return bytes([token - 2]) if 2 <= token < 258 else b""


def _expansion(sign: str, before: list[int]) -> list[int | None]:
    if sign == "?":
        return [None]
    if sign == "*":
        return [*before] * (sum(before) % 5)
    return [2 + ord(sign)]


def forced_tokens(constraint: Constraint, output: list[int]) -> tuple[int, ...]:
    """Return the tokens that must follow the output, up to the next choice or the end."""
    extended = list(output)
    while END_TOKEN not in extended and (token := forced_token(constraint, extended)) is not None:
        extended.append(token)
    return tuple(extended[len(output) :])


def _allows(constraint: Constraint, output: list[int], token: int) -> bool:
    try:
        return forced_token(constraint, output) in (None, token)
    except ConstraintFailed:
        return False


@dataclass(eq=False)
class Cell:
    """A KV cell. Sequences that share it hold the same object."""

    position: int
    token: int
    adapter: str | None = None  # the adapter of its computation


class FakeBackend:
    """A backend that stores the tokens of every slot as KV cells, and refuses steps that a real pool refuses.

    Token t >= 2 is the byte t-2 (from 258 on it has no text); 1 ends. The step that computes the token
    `kill_on` sends the process the signal `kill_with`. A sequence that computes `fault_on` fails, and no
    other. `step_s` is the duration of a step. `choose` is the model: it returns the next token from all
    before it.
    """

    def __init__(
        self,
        info: ModelInfo = FAKE_INFO,
        *,
        kill_on: int | None = None,
        kill_with: signal.Signals = signal.SIGSEGV,
        fault_on: int | None = None,
        step_s: float = 0.0,
        choose: Callable[[list[int]], int] = next_token,
    ) -> None:
        self.info = info
        self.threads = FakeThreads(info.threads)
        self.cells: dict[int, list[Cell]] = {}
        self.opened: dict[int, Open] = {}
        self.blocks: dict[int, list[Cell]] = {}
        self.states: dict[int, list[int]] = {}
        """Slot -> tokens that its state has seen, for models with a state."""
        self.saved_states: dict[int, list[int]] = {}
        self.accepted: dict[int, int] = {}  # slot -> accepted tokens of its last draft
        self.num_computed = 0
        self.verbs_ms = 0.0  # reported duration of the verbs of a step
        self.adapters: dict[str, Adapter] = {}
        self._adapter: str | None = None  # the adapter of the current step
        self.rows: set[tuple[str, int]] = set()
        """Encoded parts of pictures. A picture takes as many milliseconds as it is wide; one that is 13
        pixels high fails."""
        self.encoding: tuple[tuple[str, int], float] | None = None
        """The part that is being encoded, with its milliseconds so far."""
        self.num_discarded = 0
        self._started_slots: set[int] = set()  # slots that have computed a span
        self._kill_on = kill_on
        self._kill_with = kill_with
        self._fault_on = fault_on
        self._step_s = step_s
        self._choose = choose
        self._interrupted = threading.Event()
        self.unready: frozenset[int] = frozenset()

    def unready_slots(self) -> frozenset[int]:
        return self.unready

    def execute(self, step: Step) -> StepResult:
        for verb in step.verbs:
            self._do(verb)
        is_interrupted = bool(self._step_s) and self._interrupted.wait(self._step_s)
        self._interrupted.clear()
        if is_interrupted and step.may_be_interrupted:
            return StepResult(interrupted=True)
        assert step.num_tokens + step.padding <= self.info.max_step_tokens
        self._adapter = step.adapter
        spans = [self._with_draft(span) for span in step.spans]
        for span in spans:
            self._compute(span)
        assert self._num_cells() <= self.info.kv_tokens, "full"
        faults = {s.slot: "no numbers" for s in spans if self._fault_on in s.tokens}
        is_encoded, encoding_ms = self._encode(step.encode, faults)
        sampled = {s.slot: self._sample_along(s) for s in spans if s.sample and s.slot not in faults}
        self.accepted |= dict.fromkeys(faults, 0)
        scores = {s.slot: tuple(TokenLogprob(t, -1.0) for t in s.targets) for s in step.spans if s.targets}
        return StepResult(
            samples={slot: samples[0] for slot, (samples, _) in sampled.items() if samples},
            further={slot: tuple(samples[1:]) for slot, (samples, _) in sampled.items() if samples[1:]},
            drafted={s.slot: self._settle_draft(s) for s in step.spans if s.num_drafted},
            scores=scores,
            verbs_ms=self.verbs_ms,
            padding=step.padding,
            failures={slot: failure for slot, (_, failure) in sampled.items() if failure is not None},
            faults=faults,
            encoded=is_encoded,
            encoding_ms=encoding_ms,
        )

    def _encode(self, encode: Encode | None, faults: dict[int, str]) -> tuple[bool, float]:
        """Return whether the part is encoded, and the milliseconds of this step."""
        if encode is None:
            return False, 0.0
        opened = self.opened[encode.slot]
        placeholder = opened.media[encode.placeholder]
        item = opened.media_items[placeholder.item]
        key = item.digest, placeholder.part
        if key in self.rows:
            return True, 0.0
        is_begun = self.encoding is not None and self.encoding[0] == key
        self.num_discarded += self.encoding is not None and not is_begun
        spent_ms = self.encoding[1] if self.encoding is not None and is_begun else 0.0
        took_ms = min(encode.ms, item.size.width - spent_ms)
        self.encoding = key, spent_ms + took_ms
        if self.encoding[1] < item.size.width:
            return False, took_ms
        self.encoding = None
        if item.size.height == 13:
            faults[encode.slot] = "the picture cannot be encoded"
            return False, took_ms
        self.rows.add(key)
        return True, took_ms

    def _check_rows(self, span: Span) -> None:
        """Check that a span's rows are encoded and of one medium; an indivisible medium needs all of them."""
        media = self.opened[span.slot].media
        if span.slot not in self._started_slots:
            self._started_slots.add(span.slot)
            assert all(item.can_be_cut or not item.start < span.start < item.end for item in media)
        if not any(map(is_row, span.tokens)):
            return
        placeholder = next(item for item in media if item.start <= span.start < item.end)
        digest = self.opened[span.slot].media_items[placeholder.item].digest
        assert span.start + span.num_tokens <= placeholder.end
        assert (digest, placeholder.part) in self.rows, "the part is not encoded"
        assert not placeholder.rows.is_whole or span.num_tokens == placeholder.rows.num_rows
        assert not span.sample
        assert not span.targets

    def _num_cells(self) -> int:
        """Count shared cells once; they are found only if the plain sum exceeds the pool."""
        num_held = sum(map(len, self.cells.values()))
        if num_held <= self.info.kv_tokens:
            return num_held
        return len(set(map(id, chain.from_iterable(self.cells.values()))))

    def warm_up(self) -> bool:
        return True

    def interrupt(self) -> None:
        self._interrupted.set()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token == CONTROL_TOKEN and special:
            return b"[CONTROL]"
        return piece_of(token)

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        pattern = pattern_of(constraint) or ""
        if "#" in pattern:
            signal.raise_signal(self._kill_with)  # ends this thread
        if "%" in pattern:
            raise Panic("index out of bounds")
        return forced_tokens(constraint, list(output))

    def check_adapter(self, adapter: Adapter) -> None:
        """Refuse a path that contains `bad`."""
        if "bad" in adapter.path:
            raise AdapterFailed(f"{adapter.path} is not an adapter.")

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Load an adapter; a path that contains `kill` kills the process."""
        if "kill" in adapter.path:
            os.kill(os.getpid(), self._kill_with)
        assert adapter.key not in self.adapters
        self.adapters[adapter.key] = adapter
        return LoadedAdapter(key=adapter.key, rank=8, num_tensors=1, size_bytes=100)

    def measure(self, size: MediaSize) -> MeasuredMedia:
        num_rows = size.width if isinstance(size, PictureSize) else size.num_samples
        return MeasuredMedia(size, ((1,), MediaEmbeddings(num_rows, num_rows), (2,)))

    def unload_adapter(self, key: str) -> None:
        assert all(cell.adapter != key for cells in self.cells.values() for cell in cells), (
            "the adapter is in use"
        )
        del self.adapters[key]

    def export_cache(
        self, path: str, blocks: Sequence[SavedBlock], limit: CacheFileLimit | None = None
    ) -> None:
        states = {block.state for block in blocks} - {None}
        assert {block.number for block in blocks} | states == self.blocks.keys() | self.saved_states.keys()
        Path(path).write_bytes(msgspec.msgpack.encode(blocks))

    def import_cache(self, path: str) -> tuple[SavedBlock, ...]:
        if not Path(path).exists():
            return ()
        blocks = msgspec.msgpack.decode(Path(path).read_bytes(), type=tuple[SavedBlock, ...])
        depth: dict[int | None, int] = {None: 0}
        tokens: dict[int | None, list[int]] = {}
        for block in blocks:
            start = depth[block.parent]
            self.blocks[block.number] = [Cell(start + i, token) for i, token in enumerate(block.tokens)]
            depth[block.number] = start + len(block.tokens)
            tokens[block.number] = [*tokens.get(block.parent, []), *block.tokens]
            if block.state is not None:
                self.saved_states[block.state] = tokens[block.number]
        return blocks

    def close(self) -> None:
        self.cells.clear()

    def _do(self, verb: Verb) -> None:
        match verb:
            case Open(slot=slot):
                assert slot not in self.cells, f"slot {slot} is taken"
                self.cells[slot], self.opened[slot], self.states[slot] = [], verb, []
                self._started_slots.discard(slot)
            case Close(slot=slot):
                del self.cells[slot]
                del self.opened[slot]
                del self.states[slot]
            case ShareCells(source=source, slot=slot, end=end):
                assert self.cells[slot] == []
                assert len(self.cells[source]) >= end, "the source has not computed these cells"
                self.cells[slot] = self.cells[source][:end]
                self.states[slot] = list(self.states[source])
            case Save(slot=slot, start=start, end=end, block=block):
                assert block not in self.blocks
                assert len(self.cells[slot]) >= end
                self.blocks[block] = self.cells[slot][start:end]
            case Restore(block=block, slot=slot, start=start, end=end):
                assert len(self.cells[slot]) == start
                part = self.blocks[block][: end - start]
                assert [c.position for c in part] == list(range(start, end))
                self.cells[slot] += [Cell(c.position, c.token, c.adapter) for c in part]
                self.states[slot] = []
            case SaveState(slot=slot, end=end, state=state):
                assert self.info.state_bytes
                assert len(self.states[slot]) == end == len(self.cells[slot])
                assert state not in self.blocks.keys() | self.saved_states.keys()
                self.saved_states[state] = list(self.states[slot])
            case RestoreState(state=state, slot=slot, end=end):
                assert [cell.token for cell in self.cells[slot]] == self.saved_states[state]
                assert end == len(self.cells[slot])
                self.states[slot] = list(self.saved_states[state])
            case Drop(block=block):
                del (self.blocks if block in self.blocks else self.saved_states)[block]

    def _with_draft(self, span: Span) -> Span:
        """Draft if the span wants it, and cut the draft where the request's pattern forbids it."""
        if not span.num_to_draft and not span.draft:
            return span
        opened = self.opened[span.slot]
        context = [cell.token for cell in self.cells[span.slot]] + list(span.tokens)
        if span.num_to_draft:
            draft = self._draft(context, span.num_to_draft)
            span = msgspec.structs.replace(span, draft=draft, num_to_draft=0)
        if opened.constraint is None:
            return span
        for length, token in enumerate(span.draft):
            output = [*context[len(opened.prompt) :], *span.draft[:length]]
            if not _allows(opened.constraint, output, token):
                return msgspec.structs.replace(span, draft=span.draft[:length])
        return span

    def _draft(self, context: list[int], count: int) -> tuple[int, ...]:
        """Draft as a model that is wrong in one of four cases, and sometimes stops before `count` tokens."""
        tokens = list(context)
        while len(tokens) < len(context) + count and (digest := _digest(tokens)) % 9:
            tokens.append(self._choose(tokens) if digest % 4 else 2 + digest % 200)
        return tuple(tokens[len(context) :])

    def _compute(self, span: Span) -> None:
        self._check_rows(span)
        cells = self.cells[span.slot]
        assert len(cells) == span.start, f"slot {span.slot}: {len(cells)} cells, span from {span.start}"
        if self._kill_on in span.tokens:
            os.kill(os.getpid(), self._kill_with)
        assert {cell.adapter for cell in cells} <= {self._adapter}, "cells of another adapter"
        if self.info.state_bytes:
            assert self.states[span.slot] == [cell.token for cell in cells], "a state of other tokens"
            self.states[span.slot] += span.tokens + span.draft
        tokens = enumerate(span.tokens + span.draft)
        cells += [Cell(span.start + i, token, self._adapter) for i, token in tokens]
        self.num_computed += span.num_tokens

    def _sample_along(self, span: Span) -> tuple[list[Sample], str | None]:
        """Sample along the draft while it is right; return the samples and the failure that ended them."""
        assert not span.draft or not span.targets
        assert self.info.max_draft is None or len(span.draft) <= self.info.max_draft
        context = [cell.token for cell in self.cells[span.slot]][: span.start + len(span.tokens)]
        samples: list[Sample] = []
        output: list[int] = []
        while len(output) <= len(span.draft) and tuple(output) == span.draft[: len(output)]:
            try:
                samples.append(self._sample(span.slot, context + output))
            except ConstraintFailed as error:
                self.accepted[span.slot] = len(output)
                return samples, str(error)
            output += (samples[-1].token, *samples[-1].forced)
        self.accepted[span.slot] = num_right(span.draft, output)
        return samples, None

    def _settle_draft(self, span: Span) -> Drafted:
        """Remove the cells of wrong drafts. `span` is the planned one."""
        accepted, cells = self.accepted[span.slot], self.cells[span.slot]
        end = span.start + len(span.tokens)
        num_computed = len(cells) - end
        del cells[end + accepted :]
        del self.states[span.slot][end + accepted :]
        num_thought = num_computed + (num_computed < span.num_to_draft)
        return Drafted(num_computed, accepted, num_read=len(cells), num_thought=num_thought)

    def _sample(self, slot: int, tokens: list[int]) -> Sample:
        opened = self.opened[slot]
        output = tokens[len(opened.prompt) :]
        forced = None if opened.constraint is None else forced_token(opened.constraint, output)
        token = self._choose(adapted(self._adapter, tokens)) if forced is None else forced
        if opened.top_logprobs is None:
            burst = opened.constraint and forced_tokens(opened.constraint, [*output, token])
            return Sample(token, forced=burst or ())
        top = tuple((token + i, -1.0 - i) for i in range(opened.top_logprobs))
        return Sample(token, TokenLogprob(token, -1.0, top))


def vector_of(tokens: Sequence[int], size: int) -> list[float]:
    """Return the counts of the tokens in `size` bins, or with a size of 1 a score between -4 and 4. Vectors
    are not normalised, and texts that share letters have similar ones."""
    if size == 1:
        return [zlib.crc32(repr(list(tokens)).encode()) % 8001 / 1000 - 4]
    bins = [0.0] * size
    for token in tokens:
        bins[token % size] += 1.0
    return bins


class FakeEmbedder:
    """An embedder whose result is `vector_of`. `fail_on` and `kill_on` are tokens, `steps` are batches."""

    def __init__(
        self,
        info: ModelInfo = FAKE_EMBEDDER,
        *,
        fail_on: int | None = None,
        kill_on: int | None = None,
        kill_with: signal.Signals = signal.SIGSEGV,
        step_s: float = 0.0,
    ) -> None:
        self.info = info
        self.threads = FakeThreads(info.threads)
        self.steps: list[list[tuple[int, ...]]] = []
        self._fail_on = fail_on
        self._kill_on = kill_on
        self._kill_with = kill_with
        self._step_s = step_s
        self._interrupted = threading.Event()

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        assert 0 < len(inputs) <= self.info.max_seqs
        assert sum(map(len, inputs)) <= self.info.max_step_tokens
        assert all(0 < len(tokens) <= self.info.max_input_tokens for tokens in inputs)
        is_interrupted = bool(self._step_s) and self._interrupted.wait(self._step_s)
        self._interrupted.clear()
        if is_interrupted:
            return EmbedResult(interrupted=True)
        self.steps.append(list(inputs))
        if any(self._kill_on in tokens for tokens in inputs):
            os.kill(os.getpid(), self._kill_with)
        if any(self._fail_on in tokens for tokens in inputs):
            raise EmbeddingFailed("the fake cannot compute one of these")
        rows = [array("f", vector_of(tokens, self.info.embedding_size)) for tokens in inputs]
        return EmbedResult(b"".join(row.tobytes() for row in rows))

    def warm_up(self) -> bool:
        return True

    def interrupt(self) -> None:
        self._interrupted.set()

    def measure(self, size: MediaSize) -> MeasuredMedia:
        return not_taken(size)

    def close(self) -> None:
        pass
