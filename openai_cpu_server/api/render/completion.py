"""`text_completion`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.calls.call import Call, Prompt
from openai_cpu_server.api.render.answers import Answer, shown
from openai_cpu_server.api.render.common import (
    ChunkStream,
    Metadata,
    Tier,
    finish_reason,
    json_text,
    metadata,
    service_tier,
    timings,
)
from openai_cpu_server.api.render.legacy_logprobs import LegacyLogprobs, LegacyWriter, prompt_logprobs
from openai_cpu_server.api.render.renderer import Usage
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.models.pieces import Pieces


class TextChoice(msgspec.Struct, frozen=True):
    text: str
    index: int
    logprobs: LegacyLogprobs | None
    finish_reason: str


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    timings: dict[str, float]
    service_tier: Tier = UNSET
    system_fingerprint: str
    metadata: Metadata = UNSET


class CompletionRenderer:
    """Makes the answers of text completion calls."""

    def whole(self, call: Call, pieces: Pieces, answers: Mapping[str, Answer], figures: Figures) -> bytes:
        ranked = enumerate(shown(call, answers))
        completion = TextCompletion(
            id=call.id,
            created=call.created,
            model=call.model,
            choices=[_choice(call, pieces, position, *found) for position, found in ranked],
            usage=Usage.of(figures),
            timings=timings(figures),
            service_tier=service_tier(call),
            system_fingerprint=call.fingerprint,
            metadata=metadata(call),
        )
        return msgspec.json.encode(completion)

    def stream(self, call: Call, pieces: Pieces) -> ChunkStream:
        shown_pieces = pieces if call.shown_logprobs is not None else None
        choices = {
            request.id: _ChoiceStream(index, call.prompt_of(index), shown_pieces)
            for index, request in enumerate(call.requests)
        }
        return ChunkStream(call, "text_completion", choices)


def _choice(call: Call, pieces: Pieces, position: int, request_index: int, answer: Answer) -> TextChoice:
    assert answer.finish is not None, "an answer is rendered after its end"
    prompt = call.prompt_of(request_index)
    logprobs = None
    if call.shown_logprobs is not None:
        logprobs = _logprobs(prompt, answer, pieces)
    text = (prompt.echo or "") + answer.text
    return TextChoice(text, position, logprobs, finish_reason(answer.finish))


def _logprobs(prompt: Prompt, answer: Answer, pieces: Pieces) -> LegacyLogprobs:
    output = LegacyWriter(pieces, len(prompt.echo or "")).write(answer.logprobs)
    if prompt.echo is None:
        return output
    return prompt_logprobs(prompt, answer.prompt_logprobs, pieces) + output


class _ChoiceStream:
    """One choice of a stream; an echoed prompt comes first, with all its scores at once."""

    def __init__(self, index: int, prompt: Prompt, pieces: Pieces | None) -> None:
        self._begin = b'{"index":%d,"text":' % index
        self._prompt = prompt
        self._pieces = pieces
        self._writer = LegacyWriter(pieces, len(prompt.echo or "")) if pieces is not None else None
        self._echoed = prompt.echo is None
        self._scores: list[TokenLogprob] = []

    def choices(self, event: TokenEvent) -> list[bytes]:
        parts = []
        self._scores.extend(event.prompt_logprobs)
        if not self._echoed and (event.tokens or event.finish or self._all_scored):
            self._echoed = True
            parts.append(self._part(self._prompt.echo or "", self._prompt_logprobs()))
        logprobs = self._writer.write(event.logprobs) if self._writer is not None else None
        if event.text or event.logprobs:
            parts.append(self._part(event.text, logprobs))
        if event.finish is not None:
            parts.append(self._part("", None, finish_reason(event.finish)))
        return parts

    @property
    def _all_scored(self) -> bool:
        return len(self._scores) >= len(self._prompt.tokens) - 1

    def _prompt_logprobs(self) -> LegacyLogprobs | None:
        return prompt_logprobs(self._prompt, self._scores, self._pieces) if self._pieces is not None else None

    def _part(self, text: str, logprobs: LegacyLogprobs | None, reason: str | None = None) -> bytes:
        numbers = msgspec.json.encode(logprobs) + b',"finish_reason":' + msgspec.json.encode(reason)
        return self._begin + json_text(text) + b',"logprobs":' + numbers + b"}"
