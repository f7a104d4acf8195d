"""The last user turn of a conversation, and all that is around it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from openai_cpu_server.answers.question import Turn

_BLANK = "..."
"""It stands in the place of the turn; templates may do other things with an empty one."""
Message = Mapping[str, object]


def last_turn(
    messages: Sequence[Message], rendered: Callable[[Sequence[Message]], tuple[int, ...]]
) -> Turn | None:
    """None: no user has said anything. Raises what `rendered` raises."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        return None
    last = users[-1]
    blank = [*messages[:last], {**messages[last], "content": _BLANK}, *messages[last + 1 :]]
    return Turn(_text(messages[last]["content"]), rendered(blank))


def _text(content: object) -> str:
    """Texts as they are, parts of one on lines of their own."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content)
    return str(content)
