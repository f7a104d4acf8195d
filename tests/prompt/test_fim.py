"""Order of a fill-in-the-middle prompt."""

from __future__ import annotations

from openai_cpu_server.contract.model_info import FimTokens
from openai_cpu_server.prompt.template import fim_tokens


def test_prefix_suffix_middle() -> None:
    fim = FimTokens(prefix=100, suffix=101, middle=102)
    assert fim_tokens([1, 2], (3,), fim) == (100, 1, 2, 101, 3, 102)
    assert fim_tokens([], [], fim) == (100, 101, 102)
