"""Rendering of `text_completion` and its chunks, with log-probabilities as parallel lists."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.generation import renderer
from openai_cpu_server.api.generation.call import Prompt, ResolvedRequest
from openai_cpu_server.api.generation.completion import ChunkStream, Completion, completion
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.models.served import PieceTexts, finite_logprob


class LegacyLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def __add__(self, other: LegacyLogprobs) -> LegacyLogprobs:
        return LegacyLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class TextPosition:
    """Position of the next token in characters. A token within a character begins where that begins."""

    def __init__(self, start: int) -> None:
        self._characters = start
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def advance(self, piece: bytes) -> int:
        begin = self._characters
        self._characters += len(self._decoder.decode(piece))
        return begin


class LegacyWriter:
    def __init__(self, pieces: PieceTexts, start: int) -> None:
        self._pieces = pieces
        self._position = TextPosition(start)

    def write(self, entries: Sequence[TokenLogprob]) -> LegacyLogprobs:
        shown = [self._pieces[entry.token] for entry in entries]
        return LegacyLogprobs(
            [piece.text for piece in shown],
            [finite_logprob(entry.logprob) for entry in entries],
            [_top(entry, self._pieces) for entry in entries],
            [self._position.advance(bytes(piece.bytes or ())) for piece in shown],
        )


def prompt_logprobs(prompt: Prompt, scores: Sequence[TokenLogprob], pieces: PieceTexts) -> LegacyLogprobs:
    """Return the scores of an echoed prompt. The first token has none, and `scores[i]` is of token `i +
    1`."""
    return LegacyLogprobs(
        [pieces[token].text for token in prompt.tokens],
        [None, *(finite_logprob(score.logprob) for score in scores)],
        [None, *(_top(score, pieces) for score in scores)],
        _offsets(prompt, pieces),
    )


def _offsets(prompt: Prompt, pieces: PieceTexts) -> list[int]:
    """Ignore what the tokenizer has put before the text, such as BOS or a space."""
    assert prompt.echo is not None, "only an echoed prompt is shown"
    tokenizer = pieces.tokenizer
    raw = [tokenizer.piece(token, special=True) for token in prompt.tokens]
    if prompt.tokens[0] == tokenizer.bos:
        raw[0] = b""
    position = TextPosition(0)
    begins = [position.advance(piece) for piece in raw]
    surplus = len(b"".join(raw).decode(errors="replace")) - len(prompt.echo)
    return [min(max(0, begin - surplus), len(prompt.echo)) for begin in begins]


def _top(entry: TokenLogprob, pieces: PieceTexts) -> dict[str, float]:
    """Include the token itself. Of several tokens with one text the most likely counts."""
    top: dict[str, float] = {}
    for token, logprob in (*entry.top, (entry.token, entry.logprob)):
        top.setdefault(pieces[token].text, finite_logprob(logprob))
    return top


_EMPTY = b'{"index":%d,"text":"","logprobs":null,"finish_reason":null}'


class TextChoice(msgspec.Struct, frozen=True):
    text: str
    index: int
    logprobs: LegacyLogprobs | None
    finish_reason: str
    ended_by: renderer.EndedBy = UNSET


class TextCompletion(Completion[TextChoice], frozen=True, kw_only=True):
    object: str = "text_completion"


class CompletionRenderer:
    def whole(self, gathered: renderer.GatheredCall) -> bytes:
        (call, pieces, _, _), choices = gathered, []
        for position, (request_index, answer) in enumerate(gathered.shown):
            prompt, logprobs = call.prompt_of(request_index), None
            echo = prompt.echo or ""
            if call.shown_logprobs is not None:
                logprobs = LegacyWriter(pieces, len(echo)).write(answer.logprobs)
                if prompt.echo is not None:
                    logprobs = prompt_logprobs(prompt, answer.prompt_logprobs, pieces) + logprobs
            text, reason = echo + answer.text, renderer.finish_reason(answer.ended)
            choices.append(TextChoice(text, position, logprobs, reason, renderer.ended_by(answer.ended)))
        return completion(TextCompletion, gathered, choices)

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> ChunkStream:
        shown_pieces = pieces if call.shown_logprobs is not None else None
        choices = {
            request.id: _EchoingChoice(index, call.prompt_of(index), shown_pieces).choices
            for index, request in enumerate(call.requests)
        }
        return ChunkStream(call, "text_completion", choices, empty=_EMPTY)


class _EchoingChoice:
    def __init__(self, index: int, prompt: Prompt, pieces: PieceTexts | None) -> None:
        self._begin = b'{"index":%d,"text":' % index
        self._prompt = prompt
        self._pieces = pieces
        self._writer = LegacyWriter(pieces, len(prompt.echo or "")) if pieces is not None else None
        self._echoed = prompt.echo is None
        self._scores: list[TokenLogprob] = []

    def choices(self, event: TokenEvent) -> list[bytes]:
        parts = []
        self._scores.extend(event.prompt_logprobs)
        all_scored = len(self._scores) >= len(self._prompt.tokens) - 1
        if not self._echoed and (event.tokens or event.finish or all_scored):
            self._echoed = True
            pieces = self._pieces
            scores = prompt_logprobs(self._prompt, self._scores, pieces) if pieces is not None else None
            parts.append(self._part(self._prompt.echo or "", scores))
        logprobs = self._writer.write(event.logprobs) if self._writer is not None else None
        if event.text or event.logprobs:
            parts.append(self._part(event.text, logprobs))
        if event.finish is not None:
            last = self._part("", None, renderer.finish_reason(event.finish))
            if event.finish.is_loop:
                last = b'%b,"ended_by":"%b"}' % (last[:-1], renderer.REPETITION.encode())
            parts.append(last)
        return parts

    def _part(self, text: str, logprobs: LegacyLogprobs | None, reason: str | None = None) -> bytes:
        numbers = msgspec.json.encode(logprobs) + b',"finish_reason":' + msgspec.json.encode(reason)
        return self._begin + renderer.json_text(text) + b',"logprobs":' + numbers + b"}"
