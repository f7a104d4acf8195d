"""What stands for the tokenizer of a model whose file cannot be read."""

from __future__ import annotations

from typing import NoReturn

from openai_cpu_server.contract.model_info import FimTokens, Marks
from openai_cpu_server.errors import EngineUnavailable

_AGAIN_S = 10


class NoTokenizer:
    """The contract's `Tokenizer`. Whatever needs tokens raises EngineUnavailable with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def vocab_size(self) -> int:
        return 0

    @property
    def chat_template(self) -> str | None:
        return None

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
    def rerank_template(self) -> str | None:
        return None

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self._refuse()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        self._refuse()

    def decode(self, tokens: list[int], *, special: bool = False) -> str:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise EngineUnavailable(f"The model could not be loaded: {self._reason}", _AGAIN_S)
