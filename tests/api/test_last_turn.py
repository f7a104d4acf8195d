"""The last user turn, and what is around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openai_cpu_server.api.asking.ask import AskedMessage
from openai_cpu_server.api.asking.prompts import last_turn


def rendered(messages: Sequence[AskedMessage]) -> tuple[int, ...]:
    return tuple("|".join(f"{m.role}:{m.text}" for m in messages).encode())


def around(*messages: Mapping[str, object]) -> str:
    turn = last_turn([AskedMessage(fields) for fields in messages], rendered)
    assert turn is not None
    return bytes(turn.around).decode()


SYSTEM, DONE = {"role": "system", "content": "s"}, {"role": "tool", "content": "42", "tool_call_id": "1"}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_it_is_blanked_and_nothing_else_is() -> None:
    assert around(SYSTEM, user("a"), user("b")) == "system:s|user:a|user:..."
    assert around(user("a"), DONE) == "user:...|tool:42"


def test_its_text_is_that_of_all_its_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turn = last_turn([AskedMessage(user(parts))], rendered)
    assert turn is not None
    assert turn.text == "a\nb"


def test_without_a_user_there_is_none() -> None:
    assert last_turn([AskedMessage(SYSTEM)], rendered) is None
