"""A byte-level vocabulary for `tests.fakes.FakeBackend`: token t + 2 is byte t."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openai_cpu_server.contract.model_info import ControlToken, FimTokens, SequenceMarks
from tests.fakes import VOCAB_SIZE

CONTROL = {
    0: "<s>",
    1: "</s>",
    300: "<|user|>",
    301: "<|assistant|>",
    302: "<|tool_call|>",
    303: "[TOOL_CALLS]",
    400: "<|prefix|>",
    401: "<|suffix|>",
    402: "<|middle|>",
}


class FakeTokenizer:
    """A tokenizer of the contract's `Tokenizer` protocol. `chat_template` is plain jinja2."""

    vocab_size = VOCAB_SIZE
    bos_text = "<s>"
    eos_text = "</s>"
    bos = 0
    chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{% if m.role == 'system' and not loop.first %}{{ raise_exception('too late') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )

    def __init__(
        self,
        *,
        adds_bos: bool = True,
        adds_end: bool = False,
        has_fim: bool = False,
        rerank_template: str | None = None,
        control: Sequence[str] = (),
    ) -> None:
        """`adds_end`: append `</s>` to each text, as encoders need it. `control`: more control tokens."""
        self._names = {**CONTROL, **dict(enumerate(control, start=410))}
        self._ids = {name: token for token, name in self._names.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")
        self.adds_bos = adds_bos
        self.marks = SequenceMarks((self.bos,) * adds_bos, (1,), (1,) * adds_end)
        self.rerank_template = rerank_template
        self.fim = FimTokens(prefix=400, suffix=401, middle=402) if has_fim else None

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [self.bos] if add_special and self.adds_bos else []
        for part in self._split.split(text) if parse_special else [text]:
            tokens += (
                [self._ids[part]]
                if parse_special and part in self._ids
                else [byte + 2 for byte in part.encode()]
            )
        return [*tokens, *self.marks.end] if add_special else tokens

    @property
    def control_tokens(self) -> tuple[ControlToken, ...]:
        return tuple(map(ControlToken, self._ids))

    def least_tokens(self, text: str) -> int:
        return 0

    def encode_all(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        return [self.encode(text, add_special=add_special, parse_special=parse_special) for text in texts]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if 2 <= token < 258:
            return bytes([token - 2])
        return self._names.get(token, f"<|{token}|>").encode() if special else b""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.piece(t, special=special) for t in tokens).decode(errors="replace")
