"""Sources of drafts; one is a small model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from openai_cpu_server.contract.step import Span, num_right
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.cells.context import Context, Logits, PoolFull, TokenBatch
from openai_cpu_server.llama.grammar.constraints import MaskedDraft
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.vocabulary import Vocabulary

_MOST_PADDING = 256
"""Some models of a family have meaningless tokens at the end."""
_LEAST_SURE = 0.4
_FREE_SHARE = 16
"""Part of the cells that is reserved for the growth of sequences in the pool."""


class DraftRequest(NamedTuple):
    slot: int
    tokens: Sequence[int]
    num_tokens: int
    """Draft's length, 1 or more."""
    num_to_read: int | None = None
    """Most tokens to prefill now, or None for a whole batch."""
    position: int = 0
    """Position of the first token that the model has not computed."""
    num_new: int = 1
    masks: MaskedDraft | None = None
    """Masks, or None without a constraint."""


class ModelDraft(NamedTuple):
    tokens: tuple[int, ...]
    num_tried: int
    """Length of `tokens`, plus 1 if the draft ended at an unsure token."""


class DraftModel:
    """Source of drafts; this one makes none. Holes in its memory make drafts worse and change no output."""

    listens = False
    """True if it reads the model's hidden rows."""

    def draft(self, requests: Sequence[DraftRequest]) -> dict[int, ModelDraft]:
        """Return drafts by slot, without slots that cannot have one yet."""
        return {}

    def forget(self, slot: int) -> None: ...

    def warm_up(self) -> None: ...

    def close(self) -> None: ...

    def num_read(self, slot: int) -> int:
        return 0

    def listen(self, *, reads_along: bool) -> None: ...

    def catch_up(self, requests: Sequence[DraftRequest]) -> None:
        """Read what drafts need. Slots with more unread than a step may take get no draft yet."""

    def note(self, spans: Sequence[Span]) -> None:
        """Take the hidden rows of spans that the model has just computed. Starts are positions."""

    def trim(self, slot: int, end: int) -> None: ...

    def share(self, source: int, slot: int, end: int) -> None:
        """Let an empty slot hold the source's tokens before `end`."""

    def set_adapter(self, address: int | None, scale: float) -> None: ...


class SmallModel(DraftModel):
    """Owner of the small model and its pool, with a slot for each of the large model's.

    Slots share no cells, so a prompt is begun only if it fits to the end.
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, context: Context, *, num_common: int) -> None:
        """`num_common`: tokens that both models have, before the padding of one."""
        self._model = model
        self._num_common = num_common
        self._first_token = vocabulary.bos or 0
        self._ends = vocabulary.end_tokens.union(range(num_common, vocabulary.vocab_size))
        self._context = context
        self._batch = TokenBatch(context.batch_tokens, context.sequences)
        self._held: dict[int, list[int]] = {}
        self._claims: dict[int, int] = {}
        """Cells for tokens and draft of each slot whose prefill has begun."""

    def num_read(self, slot: int) -> int:
        return len(self._held.get(slot, ()))

    def draft(self, requests: Sequence[DraftRequest]) -> dict[int, ModelDraft]:
        spans = self._reading([one for one in requests if max(one.tokens) < self._num_common])
        counts = {one.slot: one.num_tokens for one in requests}
        drafts: dict[int, list[int]] = {}
        num_tried: Counter[int] = Counter()
        while spans:
            chosen = self._compute(spans)
            num_tried.update(chosen.keys())
            sure = {slot: token for slot, token in chosen.items() if token is not None}
            for slot, token in sure.items():
                drafts.setdefault(slot, []).append(token)
            spans = [
                Span(slot=slot, start=len(self._held[slot]), tokens=(drafts[slot][-1],), sample=True)
                for slot in sure
                if len(drafts[slot]) < counts[slot]
            ]
        return {slot: ModelDraft(tuple(drafts.get(slot, ())), tried) for slot, tried in num_tried.items()}

    def forget(self, slot: int) -> None:
        self._claims.pop(slot, None)
        if self._held.pop(slot, None) is not None:
            self._context.free_slot(slot)

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def warm_up(self) -> None:
        self._compute([Span(slot=0, start=0, tokens=(self._first_token,), sample=True)])
        self.forget(0)

    def _reading(self, requests: Sequence[DraftRequest]) -> list[Span]:
        spans = []
        left = self._batch.capacity
        for one in sorted(requests, key=lambda one: one.slot not in self._claims):
            if not self._claim(one):
                self.forget(one.slot)
                continue
            start = self._trim(one.slot, one.tokens)
            most = left if one.num_to_read is None else min(left, one.num_to_read)
            tokens = tuple(one.tokens[start : start + most])
            if tokens:
                left -= len(tokens)
                is_last = start + len(tokens) == len(one.tokens)
                spans.append(Span(slot=one.slot, start=start, tokens=tokens, sample=is_last))
        return spans

    def _claim(self, one: DraftRequest) -> bool:
        needed = len(one.tokens) + one.num_tokens
        others = sum(self._claims.values()) - self._claims.get(one.slot, 0)
        reserve = 0 if one.slot in self._claims else self._context.kv_cells // _FREE_SHARE
        if others + needed + reserve > self._context.kv_cells:
            return False
        self._claims[one.slot] = needed
        return True

    def _trim(self, slot: int, tokens: Sequence[int]) -> int:
        """The last token is always computed again."""
        held = self._held.setdefault(slot, [])
        is_beginning = held == list(tokens[: len(held)])  # most often, and quickly seen
        common = min(len(held) if is_beginning else num_right(held, tokens), len(tokens) - 1)
        if common < len(held):
            self._context.trim(slot, common)
            del held[common:]
        return common

    def _compute(self, spans: Sequence[Span]) -> dict[int, int | None]:
        """Return {} if interrupted, None for an unsure token."""
        layout = self._batch.fill(spans)
        try:
            is_done = self._context.decode(self._batch)
        except PoolFull:  # cells that are free only after a trim of other slots
            is_done = False
        if not is_done:
            for span in spans:
                self._context.trim(span.slot, span.start)
            return {}
        for span in spans:
            self._held.setdefault(span.slot, []).extend(span.tokens)
        if not layout.num_outputs:
            return {}
        logits = self._context.logits(layout.num_outputs)
        rows = {
            span.slot: rows.samples[0] for span, rows in zip(spans, layout.rows, strict=True) if span.sample
        }
        return {slot: sure_token(logits[row], self._ends) for slot, row in rows.items()}


def sure_token(logits: Logits, end_tokens: Collection[int]) -> int | None:
    """Return None if the best token ends the output or is not probable enough."""
    best = int(logits.argmax())
    if best in end_tokens or not np.isfinite(logits[best]):
        return None
    probability = 1.0 / float(np.exp(logits - logits[best]).sum())
    return best if probability >= _LEAST_SURE else None


def require_same_tokens(large: Vocabulary, small: Vocabulary, name: str) -> None:
    """Raise `StartupError` if the tokens differ, because a draft would mean another text."""
    sizes = large.vocab_size, small.vocab_size
    if abs(sizes[0] - sizes[1]) > _MOST_PADDING:
        raise StartupError(
            f"The draft model {name} has another tokenizer: {sizes[1]} tokens, the model has {sizes[0]}."
        )
    for token in range(min(sizes)):
        ours, theirs = large.piece(token, special=True), small.piece(token, special=True)
        if ours != theirs:
            raise StartupError(
                f"The draft model {name} has another tokenizer: token {token} is {_shown(theirs)}, "
                f"where the model has {_shown(ours)}."
            )


def _shown(piece: bytes) -> str:
    return repr(piece.decode("utf-8", "replace"))
