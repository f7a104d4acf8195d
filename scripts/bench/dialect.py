"""How a server wants to be asked: all speak OpenAI's API, none the same."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from bench.asking import Ask

_TOP_P = 0.95
_LLAMA_SAMPLING = {"top_k": 40, "min_p": 0.0, "repeat_penalty": 1.0}
"""Said to all who know it, so that nobody samples from more than the others do, or in more steps."""
_BANNED = -100.0


class SchemaField(enum.Enum):
    """Where a text completion's JSON Schema goes."""

    RESPONSE_FORMAT = "response_format"
    JSON_SCHEMA = "json_schema"
    NOWHERE = "nowhere"


@dataclass(frozen=True)
class Dialect:
    """The defaults are ours."""

    as_text: Callable[[tuple[int, ...]], str] | None = None
    """For servers that take no token ids as a prompt; their prompts are of about the same length."""
    end_tokens: tuple[int, ...] = ()
    """To be forbidden one by one, where `ignore_eos` is unknown."""
    tells_usage: bool = True
    """The last chunk of a stream counts the tokens."""
    schema: SchemaField = SchemaField.RESPONSE_FORMAT
    knows_llama_sampling: bool = True
    """Else it samples by temperature and top_p only, whatever one asks for."""

    def body(self, ask: Ask) -> dict[str, object]:
        """Of `POST` to `path`."""
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
        if ask.logprobs is not None:
            body["logprobs"] = ask.logprobs
        return {**body, **self._prompt(ask), **self._length(ask), **self._schema(ask)}

    def _prompt(self, ask: Ask) -> dict[str, object]:
        if ask.messages:
            return {"messages": ask.messages}
        return {"prompt": self.as_text(ask.prompt) if self.as_text else ask.prompt}

    def _length(self, ask: Ask) -> dict[str, object]:
        """All of `max_tokens`, whatever the model thinks of ending; of a chat, what it has to say."""
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
