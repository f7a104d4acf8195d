"""Tool calls: which tool, with which arguments; what to say about the result; and when to call none."""

from __future__ import annotations

from demo_model.corpus.example import Maker
from demo_model.corpus.tools import conversations

MAKERS: dict[str, Maker] = {
    "tool_call": conversations.call,
    "tool_result": conversations.result,
    "tool_none": conversations.none,
}
