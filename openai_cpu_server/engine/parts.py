from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.request import OutputMarks, OutputPart, ReasoningTracker, Thinking, overlap

_BLANKS = string.whitespace
"""White space before the reasoning, as in `ReasoningTracker`, which reads bytes."""
_HEADER = b"<|"


class PartText(NamedTuple):
    part: OutputPart
    text: str


class OutputParts:
    def __init__(self, marks: OutputMarks, name: Callable[[int], bytes]) -> None:
        """`name`: bytes of a token, control tokens by name."""
        self._name = name
        self._tokens = AnswerSearch(marks) if marks.end else None
        """Search for the answer, or None without reasoning."""
        self._text = PartReader(marks)

    def cut(self, event: TokenEvent) -> tuple[TokenEvent, ...]:
        """Split an event into one for each part. A failed output is not split, because its parts are not
        read."""
        finish = event.finish
        if finish is not None and not finish.is_good:
            return (event,)
        texts, search = self.read(event.tokens, event.text), self._tokens
        if finish is not None:
            texts += self._text.finish()
            if search is not None:
                search.finish()
                finish = replace(finish, thought_tokens=search.num_thoughts)
        first, *more = texts or [PartText(self._text.part, "")]
        start = search.start if search is not None else 0
        head = replace(event, text=first.text, part=first.part, answer_start=start, finish=None)
        further = (TokenEvent(id=event.id, text=text, part=part, answer_start=start) for part, text in more)
        *before, last = (head, *further)
        return (*before, replace(last, finish=finish))

    def read(self, tokens: Iterable[int], text: str) -> list[PartText]:
        if self._tokens is not None:
            for token in tokens:
                self._tokens.read(self._name(token))
        return self._text.feed(text)


class AnswerSearch:
    def __init__(self, marks: OutputMarks) -> None:
        self._thoughts = ReasoningTracker(marks.begin, marks.end)
        self._are_over = False
        self._mark = marks.answer_begin.encode()
        self._read: list[bytes] = []
        """Tokens, while the output may turn out to have no reasoning."""
        self._num_read = 0
        self._candidate = 0
        """First token of a possible answer."""
        self._text = b""
        self.start: int | None = None
        """Tokens before the answer, or None until it has begun."""

    @property
    def num_thoughts(self) -> int:
        return self._thoughts.num_tokens

    def read(self, piece: bytes) -> None:
        if self.start is not None:
            return
        if self._are_over:
            self._look_at(piece)
        else:
            self._think(piece)

    def finish(self) -> None:
        """An output that ends within its reasoning has no answer."""
        if self.start is None:
            is_cut = not self._are_over and self.num_thoughts > 0
            self.start = self._num_read + len(self._read) if is_cut else self._candidate

    def _think(self, piece: bytes) -> None:
        self._read.append(piece)
        answer = self._thoughts.read(piece)
        if answer is None:
            return
        self._are_over = True
        pieces, self._read = self._read, []
        if self.num_thoughts:
            self._num_read = self._candidate = len(pieces) - 1
            self._look_at(answer)
        elif not self._mark:
            self.start = 0
        else:  # the output has no thoughts, but may have the mark
            for one in pieces:
                self.read(one)

    def _look_at(self, piece: bytes) -> None:
        """White space and the mark belong to no part."""
        self._num_read += 1
        self._text = (self._text + piece).lstrip()
        if not self._text:
            self._candidate = self._num_read
        elif self._text == self._mark:
            self._candidate, self._text, self._mark = self._num_read, b"", b""
        elif not self._mark.startswith(self._text):
            self.start = self._candidate


class PartReader:
    """Splitter whose parts do not depend on the pieces of text."""

    def __init__(self, marks: OutputMarks) -> None:
        self._marks = marks
        self._held = ""
        self._has_text = False
        self._read = self._first(marks)

    @property
    def part(self) -> OutputPart:
        return OutputPart.THINKING if self._read == self._within else OutputPart.ANSWER

    def feed(self, text: str) -> list[PartText]:
        if not text:
            return []
        held, self._held = self._held, ""
        return self._read(held + text)

    def finish(self) -> list[PartText]:
        held, self._held = self._held, ""
        if self._read == self._within:
            return self._thought(held.rstrip())
        is_mark = self._read == self._in_answer and self._is_end(held)
        return _answer("" if is_mark else held)

    def _first(self, marks: OutputMarks) -> Callable[[str], list[PartText]]:
        if marks.has_channels:
            return _answer
        if not marks.end:
            return self._behind if marks.answer_alone else self._in_answer
        return self._before if marks.begin else self._within

    def _before(self, text: str) -> list[PartText]:
        head, begin = text.lstrip(_BLANKS), self._marks.begin
        if head.startswith(begin):
            return self._go_on(self._within, head[len(begin) :])
        if begin.startswith(head):
            return self._hold(text)
        # Some put the marks of an answer around one without thoughts, too.
        has_marks = self._marks.answer_begin or self._marks.answer_alone or self._marks.answer_end
        return self._go_on(self._behind if has_marks else _answer, text)

    def _within(self, text: str) -> list[PartText]:
        thoughts, found, rest = text.partition(self._marks.end)
        if found:
            return [*self._thought(thoughts.rstrip()), *self._go_on(self._behind, rest)]
        safe = _safe(text, self._marks.end)
        self._hold(text[safe:])
        return self._thought(text[:safe])

    def _behind(self, text: str) -> list[PartText]:
        """Many models close their reasoning again after it was closed for them."""
        head, end = text.lstrip(), self._marks.end
        if end and head.startswith(end):
            return self._go_on(self._behind, head[len(end) :])
        begins = [mark for mark in (self._marks.answer_begin, self._marks.answer_alone) if mark]
        if any(mark != head and mark.startswith(head) for mark in (end, *begins)):
            return self._hold(head)
        begin = next((mark for mark in begins if head.startswith(mark)), None if begins else "")
        if begin is not None:
            return self._go_on(self._at_answer, head[len(begin) :])
        return self._go_on(_answer, head)

    def _at_answer(self, text: str) -> list[PartText]:
        head = text.lstrip()
        return self._go_on(self._in_answer, head) if head else []

    def _in_answer(self, text: str) -> list[PartText]:
        end = self._marks.answer_end
        if not end:
            return _answer(text)
        whole = text.rstrip().removesuffix(end) if self._is_end(text) else None
        safe = _safe(text, end) if whole is None else len(whole.rstrip())
        self._hold(text[safe:])
        return _answer(text[:safe])

    def _is_end(self, text: str) -> bool:
        end = self._marks.answer_end
        return bool(end) and text.rstrip().endswith(end)

    def _thought(self, text: str) -> list[PartText]:
        if not self._has_text:
            text = text.lstrip()
        self._has_text = self._has_text or bool(text)
        return [PartText(OutputPart.THINKING, text)] if text else []

    def _go_on(self, read: Callable[[str], list[PartText]], rest: str) -> list[PartText]:
        self._read = read
        return read(rest) if rest else []

    def _hold(self, text: str) -> list[PartText]:
        self._held = text
        return []


class StopStringBuffer:
    """Search for the text for the user, in which stop strings count."""

    def __init__(self, thinking: Thinking) -> None:
        self._thoughts: ReasoningTracker | None = ReasoningTracker(thinking.begin, thinking.end)
        """Unset once the reasoning has ended."""
        self._mark = thinking.shown_behind.encode()
        self._text = b""

    def ends_with(self, piece: bytes) -> bool:
        """Return True at the text for the user, after which reading ends."""
        answer: bytes | None = piece
        if self._thoughts is not None:
            answer = self._thoughts.read(piece)
        if answer is None:
            return False
        self._thoughts = None
        return not self._mark or self._is_behind_mark(answer)

    def _is_behind_mark(self, piece: bytes) -> bool:
        """An output without headers is for the user at once."""
        self._text += piece
        head = self._text.lstrip()[:2]
        if not _HEADER.startswith(head) or self._mark in self._text:
            return True
        self._text = head + self._text.lstrip()[2:][-len(self._mark) :]
        return False


def _answer(text: str) -> list[PartText]:
    return [PartText(OutputPart.ANSWER, text)] if text else []


def _safe(text: str, mark: str) -> int:
    return len(text[: len(text) - overlap(text, mark)].rstrip())
