"""What stands for the reader of a model whose file cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from openai_cpu_server.contract.grammar import GrammarOrder
from openai_cpu_server.contract.model_info import FimTokens, Marks
from openai_cpu_server.errors import EngineUnavailable
from openai_cpu_server.prompt.chat_prompts import ChatPrompt, Conversation

_AGAIN_S = 10


class Unreadable:
    """The contract's `Tokenizer` and `GrammarMaker`, and `Prompts`. Whatever needs tokens raises
    EngineUnavailable with the reason."""

    has_template = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def vocab_size(self) -> int:
        return 0

    @property
    def bos_text(self) -> str:
        return ""

    @property
    def eos_text(self) -> str:
        return ""

    @property
    def bos(self) -> int | None:
        return None

    @property
    def adds_bos(self) -> bool:
        return False

    @property
    def fim(self) -> FimTokens | None:
        return None

    @property
    def marks(self) -> Marks:
        return Marks()

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset()

    def least_tokens(self, text: str) -> int:
        return 0

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self._refuse()

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        self._refuse()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        self._refuse()

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        self._refuse()

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        self._refuse()

    def __call__(self, order: GrammarOrder) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise EngineUnavailable(f"The model could not be loaded: {self._reason}", _AGAIN_S)
