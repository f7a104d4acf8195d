"""Drafts by a model's prediction head, which reads the model's hidden rows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.step import Span
from openai_cpu_server.llama.cells.context import (
    Context,
    DecodeFailed,
    HeadBatch,
    HeadToken,
    HiddenRow,
    Logits,
)
from openai_cpu_server.llama.draft_model import DraftModel, DraftRequest, ModelDraft, sure_token
from openai_cpu_server.llama.gguf.heads import HeadKind, PredictionHead
from openai_cpu_server.llama.grammar.constraints import MaskedDraft
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_MOST_UNREAD = 8
"""Computed tokens that the next draft reads without another call."""
_MOST_UNREAD_IDLE = 128
"""The same while no drafts are made. Behind them is a hole.

Drafts of a step read at most as many, so that its streams do not wait.
"""
_IDLE_STEPS = 16
"""Steps without a possible draft after which a head is idle."""
_MOST_FORCED = 4
"""Forced tokens through which a draft goes. Each costs a call."""


@dataclass(eq=False)
class _Track:
    """Tokens that a head has not read, each with the model's hidden row before it."""

    start: int
    tokens: list[int] = field(default_factory=list)
    rows: list[HiddenRow | None] = field(default_factory=lambda: [None])
    """The last row is that of the last token. The first one is None behind a hole, and at position 0."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def add(self, tokens: Sequence[int], rows: HiddenRow, most: int | None) -> None:
        """`most`: last tokens to keep, or None for all."""
        skipped = 0 if most is None else max(0, len(tokens) - most)
        if skipped:
            self.start, self.tokens, self.rows = self.end + skipped, [], [rows[skipped - 1].copy()]
        elif most is not None:
            self.drop_before(self.end + len(tokens) - most)
        self.tokens += tokens[skipped:]
        self.rows.extend(rows[skipped:].copy())

    def trim(self, end: int) -> None:
        length = max(0, end - self.start)
        del self.tokens[length:]
        del self.rows[length + 1 :]

    def drop_before(self, start: int) -> None:
        count = min(start, self.end) - self.start
        if count > 0:
            self.start += count
            del self.tokens[:count]
            # A copy, because a row is a view of those of its whole step.
            self.rows = [self.rows[count].copy(), *self.rows[count + 1 :]]  # type: ignore[union-attr]

    def copy(self, end: int) -> _Track:
        track = _Track(self.start, list(self.tokens), list(self.rows))
        track.trim(end)
        return track


class _Chain:
    def __init__(self, request: DraftRequest, row: HiddenRow) -> None:
        first, *forced = request.tokens[-request.num_new :]
        self.request = request
        self.tokens = [first]
        self.rows = [row]
        self.draft: list[int] = []
        self.num_tried = 0
        self.forced = deque(forced)

    def add(self, token: int, row: HiddenRow) -> None:
        self.tokens.append(token)
        self.rows.append(row)


class _HeadCells:
    def __init__(self, context: Context, width: int, *, is_cut: bool, keeps_cells: bool) -> None:
        self.context = context
        self.keeps_cells = keeps_cells
        self._is_cut = is_cut
        self._batch = HeadBatch(context.batch_tokens, width)
        self._nothing = np.zeros(width, np.float32)
        self._ends: dict[int, int] = {}
        """Position behind the last token."""
        context.give_hidden_rows(of_outputs=is_cut)

    @property
    def capacity(self) -> int:
        return self._batch.capacity

    def unread(self, slot: int, track: _Track, end: int) -> list[HeadToken]:
        if not self.keeps_cells:
            return []
        if self._ends.get(slot, end) > end:
            self._ends[slot] = end
            self.take_back([slot])
        start = max(track.start, self._ends.get(slot, 0))
        if self._ends.get(slot, start) != start:  # llama.cpp takes no gap
            self.forget(slot)
        pairs = zip(track.tokens[start - track.start :], track.rows[start - track.start :], strict=False)
        return [
            HeadToken(slot, position, token, self._nothing if row is None else row)
            for position, (token, row) in enumerate(pairs, start)
            if position < end
        ]

    def read(self, tokens: Sequence[HeadToken]) -> None:
        for first in range(0, len(tokens), self.capacity):
            part = tokens[first : first + self.capacity]
            if self._decode(part):
                self.hold(part)

    def hold(self, tokens: Sequence[HeadToken]) -> None:
        if self.keeps_cells:
            self._ends.update({token.slot: token.position + 1 for token in tokens})

    def outputs(self, tokens: Sequence[HeadToken]) -> tuple[Logits, Logits] | None:
        """Return logits and hidden rows, or None if interrupted."""
        if not self._decode(tokens):
            return None
        wanted = [index for index, token in enumerate(tokens) if token.wanted]
        rows = self.context.hidden_rows(len(wanted) if self._is_cut else len(tokens))
        return self.context.logits(len(wanted)), rows if self._is_cut else rows[wanted]

    def _decode(self, tokens: Sequence[HeadToken]) -> bool:
        self._batch.fill(tokens)
        try:
            if self.context.decode(self._batch):
                return True
        except DecodeFailed as error:  # the model itself goes on without a draft
            logger.warning("The prediction head cannot draft now: %s", error)
            for slot in {token.slot for token in tokens}:
                self.forget(slot)
            return False
        self.take_back({token.slot for token in tokens})
        return False

    def take_back(self, slots: Iterable[int]) -> None:
        for slot in slots if self.keeps_cells else ():
            self.context.trim(slot, self._ends.get(slot, 0))

    def share(self, source: int, slot: int, end: int) -> None:
        end = min(end, self._ends.get(source, 0))
        if self.keeps_cells and end > 0:
            self.context.share(source, slot, 0, end)
            self._ends[slot] = end

    def forget(self, slot: int) -> None:
        if self.keeps_cells:
            self.context.free_slot(slot)
            self._ends.pop(slot, None)

    def end(self, slot: int) -> int:
        return self._ends.get(slot, 0)


class DraftHead(DraftModel):
    """Owner of the head's contexts, and of its model if that has its own file.

    Prompts are read once computed, single tokens with the next draft, nothing while idle. Each head of a
    chain has its own cells, because all compute the same positions.
    """

    def __init__(
        self,
        head: PredictionHead,
        model: Model,
        target: Context,
        contexts: Sequence[Context],
        vocabulary: Vocabulary,
        *,
        owns_model: bool,
    ) -> None:
        """`contexts`: one for each head of a chain."""
        self._kind = head.kind
        self._model = model
        self._target = target
        self._end_tokens = vocabulary.end_tokens
        self._owns_model = owns_model
        keeps_cells = head.kind is not HeadKind.SHARED
        width = model.output_width
        self._heads = [
            _HeadCells(context, width, is_cut=head.is_cut, keeps_cells=keeps_cells) for context in contexts
        ]
        self._tracks: dict[int, _Track] = {}
        self._num_idle_steps = 0
        self.listen(reads_along=True)

    def listen(self, *, reads_along: bool) -> None:
        if reads_along == self.listens:
            return
        self.listens = reads_along
        # Without them the last layer computes only the rows of outputs.
        self._target.give_hidden_rows(of_outputs=not reads_along, is_on=reads_along)
        if not reads_along:
            self._tracks.clear()

    def note(self, spans: Sequence[Span]) -> None:
        self._num_idle_steps += any(span.sample and len(span.tokens) <= 1 + _MOST_FORCED for span in spans)
        is_idle = self._num_idle_steps > _IDLE_STEPS
        rows = self._target.hidden_rows(sum(span.num_tokens for span in spans))
        first = 0
        ends: dict[int, int] = {}
        for span in spans:
            end = first + span.num_tokens
            track = self._track_at(span.slot, span.start)
            waits = is_idle or len(track.tokens) > _MOST_UNREAD
            track.add((*span.tokens, *span.draft), rows[first:end], _MOST_UNREAD_IDLE if waits else None)
            computed = span.start + len(span.tokens)  # drafts may be taken back
            if not waits and computed - track.start > _MOST_UNREAD:
                ends[span.slot] = computed
            first = end
        self._read(ends)

    def catch_up(self, requests: Sequence[DraftRequest]) -> None:
        room, ends = _MOST_UNREAD_IDLE, dict[int, int]()
        for one in requests:
            num_unread = one.position - track.start if (track := self._track_of(one)) is not None else 0
            if _MOST_UNREAD < num_unread <= room:
                room -= num_unread
                ends[one.slot] = one.position
        self._read(ends)

    def _read(self, ends: Mapping[int, int]) -> None:
        for head in self._heads if ends else ():
            head.read([t for slot, end in ends.items() for t in head.unread(slot, self._tracks[slot], end)])
        for slot, end in ends.items():
            self._drop_read(slot, end)

    def _drop_read(self, slot: int, end: int) -> None:
        read = min(head.end(slot) for head in self._heads)
        self._tracks[slot].drop_before(min(read, end) if self._heads[0].keeps_cells else end)

    def _track_at(self, slot: int, start: int) -> _Track:
        track = self._tracks.get(slot)
        if track is None or not track.start <= start <= track.end:
            track = self._tracks[slot] = _Track(start)
        track.trim(start)
        return track

    def trim(self, slot: int, end: int) -> None:
        if slot in self._tracks:
            self._track_at(slot, end)

    def share(self, source: int, slot: int, end: int) -> None:
        track = self._tracks.get(source)
        if track is not None and track.start <= end <= track.end:
            self._tracks[slot] = track.copy(end)
        for head in self._heads:
            head.share(source, slot, end)

    def forget(self, slot: int) -> None:
        self._tracks.pop(slot, None)
        for head in self._heads:
            head.forget(slot)

    def set_adapter(self, address: int | None, scale: float) -> None:
        for head in self._heads if not self._owns_model else ():
            head.context.set_adapter(address, scale)

    def draft(self, requests: Sequence[DraftRequest]) -> dict[int, ModelDraft]:
        self._num_idle_steps = 0
        chains = [chain for one in requests if (chain := self._chain(one)) is not None]
        live, depth = list(chains), 0
        while live:
            live = self._grow(live, depth)
            depth += 1
            if self._kind is HeadKind.CHAINED and depth == len(self._heads):
                break
        drafting = [chain.request for chain in chains]
        for head in self._heads[:depth]:
            head.take_back([one.slot for one in drafting])
        for one in drafting:
            self._drop_read(one.slot, one.position)
        return {chain.request.slot: ModelDraft(tuple(chain.draft), chain.num_tried) for chain in chains}

    def _track_of(self, request: DraftRequest) -> _Track | None:
        track = self._tracks.get(request.slot)
        if track is None or request.num_new > 1 + _MOST_FORCED:
            return None
        track.trim(request.position)
        return track if track.end == request.position and track.rows[-1] is not None else None

    def _chain(self, request: DraftRequest) -> _Chain | None:
        track = self._track_of(request)
        if track is None or (row := track.rows[-1]) is None or len(track.tokens) > _MOST_UNREAD:
            return None
        return _Chain(request, row)

    def _grow(self, chains: Sequence[_Chain], depth: int) -> list[_Chain]:
        is_chain = self._kind is HeadKind.CHAINED
        head = self._heads[depth if is_chain else 0]
        batch: list[HeadToken] = []
        live: list[_Chain] = []
        sure: list[HeadToken] = []
        for chain in chains:
            slot, position = chain.request.slot, chain.request.position
            own: list[HeadToken] = []
            if is_chain or depth == 0:
                own = head.unread(slot, self._tracks[slot], position)
            first = 0 if is_chain else depth
            own += [
                HeadToken(slot, position + (at if head.keeps_cells else 0), token, row)
                for at, (token, row) in enumerate(
                    zip(chain.tokens[first:], chain.rows[first:], strict=True), first
                )
            ]
            own[-1] = own[-1]._replace(wanted=True)
            if len(batch) + len(own) <= head.capacity:
                batch += own
                sure += [token for token in own if token.position == position][:1]
                live.append(chain)
        found = head.outputs(batch) if batch else None
        if found is None:
            return []
        if is_chain or depth == 0:
            head.hold(sure)
        return [
            chain for chain, logits, row in zip(live, *found, strict=True) if self._extend(chain, logits, row)
        ]

    def _extend(self, chain: _Chain, logits: HiddenRow, row: HiddenRow) -> bool:
        if chain.forced:
            chain.add(chain.forced.popleft(), row.copy())
            return True
        chain.num_tried += 1
        try:
            with contained():
                token = self._choose(chain.request.masks, logits)
        except RequestFailed:
            return False  # the failure appears with the model's own token
        if token is None:
            return False
        chain.draft.append(token)
        chain.add(token, row.copy())
        return len(chain.draft) < chain.request.num_tokens

    def _choose(self, masks: MaskedDraft | None, logits: HiddenRow) -> int | None:
        """Return None for an unsure token. Raises `RequestFailed`."""
        if masks is None:
            return sure_token(logits, self._end_tokens)
        allowed = masks.allowed()
        token = sure_token(
            logits if allowed is None else np.where(allowed, logits, -np.inf), self._end_tokens
        )
        if token is not None:
            masks.accept(token)
        return token

    def warm_up(self) -> None:
        row = np.zeros(self._model.output_width, np.float32)
        for head in self._heads:
            head.outputs([HeadToken(0, 0, 0, row, wanted=True)])
            head.take_back([0])

    def close(self) -> None:
        for head in self._heads:
            head.context.close()
        if self._owns_model:
            self._model.close()
