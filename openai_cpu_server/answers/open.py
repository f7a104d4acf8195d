"""Opens the store that `--answer-cache` names."""

from __future__ import annotations

from pathlib import Path

from openai_cpu_server.answers.redis import SCHEMES, RedisAnswers
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import AnswerStore, Bounds
from openai_cpu_server.errors import StartupError
from openai_cpu_server.user_folders import expanded


def open_answers(where: str, bounds: Bounds, *, default: Path) -> AnswerStore:
    """`where`: on, memory, a path, or redis://... `default`: the file that `on` means.

    Raises StartupError.
    """
    if where.startswith(SCHEMES):
        return RedisAnswers.open(where, bounds)
    if "://" in where:
        raise StartupError("--answer-cache: expected on, memory, a PATH, or redis://HOST:PORT")
    if where == "memory":
        return SqliteAnswers.open(None, bounds)
    return SqliteAnswers.open(default if where == "on" else expanded(where), bounds)
