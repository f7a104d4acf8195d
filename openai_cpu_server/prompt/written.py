"""Earlier answers stand in a prompt as the tokens that the model wrote, so that it finds them computed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.prompt.messages import Message

Written = Mapping[int, Sequence[int]]
"""By the index of an assistant's message: the tokens that the model wrote for it."""
Render = Callable[[Sequence[Message]], str]
"""Renders messages, up to where the model's next answer begins."""


def written_parts(messages: Sequence[Message], written: Written, render: Render) -> list[str] | None:
    """The prompt's text before, between and behind the written answers.

    A template writes an answer of before from its text: it trims white space, and writes calls anew from
    their arguments. Tokenised again, even the very same text can become other tokens than those that were
    sampled. So a mark is rendered in place of such an answer, and the tokens are put where the mark stands.

    None: the template does not show a plain answer where one of these stands.
    """
    places = sorted(written)
    marks = [f"w{secrets.token_hex(12)}w" for _ in places]
    marked = list(messages)
    for place, mark in zip(places, marks, strict=True):
        marked[place] = {"role": "assistant", "content": mark}
    try:
        parts = _split(render(marked), marks)
        opening = render(marked[: places[0]])
    except (TemplateFailed, InvalidRequest):
        return None
    return parts and _without_blanks(parts, opening)


def _split(text: str, marks: Sequence[str]) -> list[str] | None:
    """None: a mark is missing, or stands there twice, or elsewhere."""
    parts = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        before, _, text = text.partition(mark)
        parts.append(before)
    return [*parts, text]


def _without_blanks(parts: Sequence[str], opening: str) -> list[str]:
    """The parts, each ending where the model began to write: some templates set a blank before an answer of
    before that they do not set when they ask for one."""
    first = parts[0]
    if first == opening or first.rstrip() != opening.rstrip() or not first.startswith(opening):
        return list(parts)
    blanks = first[len(opening) :]
    return [part.removesuffix(blanks) for part in parts[:-1]] + [parts[-1]]
