"""Log-probabilities of answers alone, as `logprobs.content` has them: not of thoughts or their marks."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.api.calls.call import CallThinking
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.contract.thinking import Thoughts
from openai_cpu_server.models.pieces import Pieces

Scores = Sequence[TokenLogprob]


class ContentScores:
    """Follows the tokens of one output. What may still be a thought or a mark is held back."""

    def __init__(self, thinking: CallThinking | None, pieces: Pieces) -> None:
        """`thinking`: None for an output that is nothing but the answer."""
        self._pieces = pieces
        marks = thinking.marks if thinking is not None else None
        self._thoughts = Thoughts(marks) if marks is not None else None
        """None: they are over."""
        self._mark = thinking.form.answer_begin.encode() if thinking is not None else b""
        """It may stand between thoughts and answer."""
        self._has_begun = marks is None
        """The answer has."""
        self._held: list[TokenLogprob] = []
        self._text = b""
        """The text of what is held back behind the thoughts."""

    def behind(self, entries: Scores) -> list[TokenLogprob]:
        """Those of the answer that are known now."""
        return [known for entry in entries for known in self._read(entry)]

    def rest(self) -> list[TokenLogprob]:
        """What was held back, once the output has ended. An output that ends within its thoughts has none."""
        is_cut = self._thoughts is not None and self._thoughts.num_tokens > 0
        held, self._held = self._held, []
        return [] if is_cut else held

    def _read(self, entry: TokenLogprob) -> Scores:
        if self._has_begun:
            return (entry,)
        piece = self._pieces.tokenizer.piece(entry.token, special=True)
        return self._behind_thoughts(entry, piece) if self._thoughts is None else self._thought(entry, piece)

    def _thought(self, entry: TokenLogprob, piece: bytes) -> Scores:
        assert self._thoughts is not None
        thoughts, self._held = self._thoughts, [*self._held, entry]
        answer = thoughts.read(piece)
        if answer is None:
            return ()
        self._thoughts = None
        if not thoughts.num_tokens:
            return self._begun() if not self._mark else self._again(self._held)
        self._held = []
        return self._behind_thoughts(entry, answer) if answer.strip() else ()

    def _again(self, entries: Scores) -> Scores:
        """There are no thoughts, but there may be the mark."""
        self._held = []
        return [known for entry in entries for known in self._read(entry)]

    def _behind_thoughts(self, entry: TokenLogprob, piece: bytes) -> Scores:
        """White space and the mark belong to nobody."""
        self._held.append(entry)
        self._text = (self._text + piece).lstrip()
        if not self._text:
            self._held = []
        elif self._text == self._mark:
            self._held, self._text, self._mark = [], b"", b""
        elif not self._mark.startswith(self._text):
            return self._begun()
        return ()

    def _begun(self) -> Scores:
        self._has_begun = True
        held, self._held = self._held, []
        return held
