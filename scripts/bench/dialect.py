"""Differences between the servers' versions of OpenAI's API."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from bench.asking import Ask

_TOP_P = 0.95
_LLAMA_SAMPLING = {"top_k": 40, "min_p": 0.0, "repeat_penalty": 1.0}
"""Sent to all servers that know these, so that all sample from the same tokens in the same steps."""
_BANNED = -100.0


class SchemaField(enum.Enum):
    RESPONSE_FORMAT = "response_format"
    JSON_SCHEMA = "json_schema"
    NOWHERE = "nowhere"


@dataclass(frozen=True)
class Dialect:
    as_text: Callable[[tuple[int, ...]], str] | None = None
    """Converts a prompt to text of about its length, for servers that take no token ids."""
    end_tokens: tuple[int, ...] = ()
    """Tokens to forbid one by one, for servers without `ignore_eos`."""
    tells_usage: bool = True
    schema: SchemaField = SchemaField.RESPONSE_FORMAT
    knows_llama_sampling: bool = True
    """True if it knows llama.cpp's parameters. Otherwise it samples by temperature and top_p only."""

    def body(self, ask: Ask) -> dict[str, object]:
        body: dict[str, object] = {
            "max_tokens": ask.max_tokens,
            "seed": ask.seed,
            "temperature": ask.temperature,
            "top_p": _TOP_P,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.knows_llama_sampling:
            body |= _LLAMA_SAMPLING
        if ask.model is not None:
            body["model"] = ask.model
        if ask.logprobs is not None:
            body["logprobs"] = ask.logprobs
        return {**body, **self._prompt(ask), **self._length(ask), **self._schema(ask)}

    def _prompt(self, ask: Ask) -> dict[str, object]:
        if ask.messages:
            return {"messages": ask.messages}
        return {"prompt": self.as_text(ask.prompt) if self.as_text else ask.prompt}

    def _length(self, ask: Ask) -> dict[str, object]:
        if ask.ends_itself:
            return {}
        if self.end_tokens:
            return {"logit_bias": {str(token): _BANNED for token in self.end_tokens}}
        return {"ignore_eos": True}

    def _schema(self, ask: Ask) -> dict[str, object]:
        if ask.schema is None:
            return {}
        assert self.schema is not SchemaField.NOWHERE, "only those are asked who can"
        if self.schema is SchemaField.JSON_SCHEMA:
            return {"json_schema": ask.schema}
        named = {"name": "answer", "strict": True, "schema": ask.schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}


OURS = Dialect()
