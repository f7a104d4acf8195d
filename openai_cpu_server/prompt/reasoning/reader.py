"""Reads an output that may begin with thoughts, while it comes."""

from __future__ import annotations

import string
from collections.abc import Callable

from openai_cpu_server.prompt.reasoning.formats import ReasoningFormat
from openai_cpu_server.prompt.reasoning.stage import Stage
from openai_cpu_server.prompt.tool_formats import OutputReader, Part, Reasoning

_BLANKS = string.whitespace
"""What may stand before the thoughts: the same as for `contract.thinking.Thoughts`, which reads bytes."""


class ThinkingReader:
    """Gives the thoughts as `Reasoning`, and all that is behind them to a reader of answers. Marks, and white
    space around them, are nobody's. The parts are the same however the text was cut into pieces."""

    def __init__(self, form: ReasoningFormat, stage: Stage, answer: OutputReader) -> None:
        self._form = form
        self._answer = answer
        self._held = ""
        """Text that cannot be told yet."""
        self._has_begun = False
        """Some of the thoughts were given."""
        self._read: Callable[[str], list[Part]] = {
            Stage.BEFORE: self._before,
            Stage.WITHIN: self._within,
            Stage.BEHIND: self._in_answer,
        }[stage]

    @property
    def is_cut(self) -> bool:
        return self._answer.is_cut

    @property
    def has_calls(self) -> bool:
        return self._answer.has_calls

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        held, self._held = self._held, ""
        return self._read(held + text)

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._read == self._within:
            return [*self._reasoning(held.rstrip()), *self._answer.finish()]
        is_mark = self._read == self._in_answer and self._is_end(held)
        return [*self._answer.feed("" if is_mark else held), *self._answer.finish()]

    def _before(self, text: str) -> list[Part]:
        head, begin = text.lstrip(_BLANKS), self._form.begin
        if head.startswith(begin):
            return self._go_on(self._within, head[len(begin) :])
        if begin.startswith(head):
            return self._hold(text)
        # Some put the marks of an answer around one without thoughts, too.
        has_marks = self._form.answer_begin or self._form.answer_end
        return self._go_on(self._behind if has_marks else self._in_plain_answer, text)

    def _within(self, text: str) -> list[Part]:
        thoughts, found, rest = text.partition(self._form.end)
        if found:
            return [*self._reasoning(thoughts.rstrip()), *self._go_on(self._behind, rest)]
        safe = _safe(text, self._form.end)
        self._hold(text[safe:])
        return self._reasoning(text[:safe])

    def _behind(self, text: str) -> list[Part]:
        """Many models close their thoughts once more where somebody else has done it for them."""
        head, begin, end = text.lstrip(), self._form.answer_begin, self._form.end
        if head.startswith(end):
            return self._go_on(self._behind, head[len(end) :])
        if end.startswith(head) or (begin != head and begin.startswith(head)):
            return self._hold(head)
        if head.startswith(begin):
            return self._go_on(self._at_answer, head[len(begin) :])
        return self._go_on(self._in_plain_answer, head)

    def _at_answer(self, text: str) -> list[Part]:
        head = text.lstrip()
        return self._go_on(self._in_answer, head) if head else []

    def _in_answer(self, text: str) -> list[Part]:
        """A mark of its end is dropped where the output ends with it."""
        end = self._form.answer_end
        if not end:
            return self._answer.feed(text)
        whole = text.rstrip().removesuffix(end) if self._is_end(text) else None
        safe = _safe(text, end) if whole is None else len(whole.rstrip())
        self._hold(text[safe:])
        return self._answer.feed(text[:safe])

    def _in_plain_answer(self, text: str) -> list[Part]:
        return self._answer.feed(text)

    def _is_end(self, text: str) -> bool:
        """Whether nothing follows a mark of the answer's end in it."""
        end = self._form.answer_end
        return bool(end) and text.rstrip().endswith(end)

    def _reasoning(self, text: str) -> list[Part]:
        if not self._has_begun:
            text = text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return [Reasoning(text)] if text else []

    def _go_on(self, read: Callable[[str], list[Part]], rest: str) -> list[Part]:
        self._read = read
        return read(rest) if rest else []

    def _hold(self, text: str) -> list[Part]:
        self._held = text
        return []


class SilentReader:
    """Leaves out the thoughts that another reader gives."""

    def __init__(self, reader: OutputReader) -> None:
        self._reader = reader

    @property
    def is_cut(self) -> bool:
        return self._reader.is_cut

    @property
    def has_calls(self) -> bool:
        return self._reader.has_calls

    def feed(self, text: str) -> list[Part]:
        return _without_reasoning(self._reader.feed(text))

    def finish(self) -> list[Part]:
        return _without_reasoning(self._reader.finish())


def _without_reasoning(parts: list[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Reasoning)]


def _safe(text: str, mark: str) -> int:
    """How much of the text can belong neither to the mark nor to white space before it."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    overlap = next((size for size in sizes if text.endswith(mark[:size])), 0)
    return len(text[: len(text) - overlap].rstrip())
