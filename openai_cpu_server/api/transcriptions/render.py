"""Transcripts as text, segments, subtitles and events."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation import renderer
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.logprobs import ContentScores
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import PromptProgress, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.models.served import PieceTexts, finite_logprob

_TASK_LANGUAGE = {"transcribe": "und", "translate": "english"}
"""Reported if the client names no language; `und` is the standard code for unknown."""


class ScoredToken(msgspec.Struct, frozen=True):
    token: str
    bytes: tuple[int, ...] | None
    logprob: float


class InputDetails(msgspec.Struct, frozen=True):
    audio_tokens: int
    text_tokens: int
    cached_tokens: int
    audio_seconds: float


class TranscriptTokens(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputDetails

    @classmethod
    def of(cls, figures: Figures) -> TranscriptTokens:
        audio, text = figures.audio_tokens, figures.prompt_tokens - figures.audio_tokens
        return cls(
            input_tokens=figures.prompt_tokens,
            output_tokens=figures.output_tokens,
            total_tokens=figures.total_tokens,
            input_token_details=InputDetails(audio, text, figures.cached_tokens, round(figures.audio_s, 3)),
        )


class SoundDuration(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "duration"
    seconds: float


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    logprobs: Union[list[ScoredToken], UnsetType] = UNSET
    usage: TranscriptTokens


class TranscriptSegment(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    seek: int
    """Start in frames of 10 ms."""
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    """Bytes of the text, divided by its size with zlib. Repetition has a high ratio."""
    no_speech_prob: None = None
    """Not computed by any model here."""


class VerboseTranscript(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    language: str
    duration: float
    text: str
    segments: list[TranscriptSegment]
    usage: SoundDuration


class TranscriptDelta(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "transcript.text.delta"
    delta: str
    logprobs: Union[list[ScoredToken], UnsetType] = UNSET


class TranscriptDone(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "transcript.text.done"
    text: str
    logprobs: Union[list[ScoredToken], UnsetType] = UNSET
    usage: TranscriptTokens


class RecordingProgress(msgspec.Struct, frozen=True):
    total_s: float
    processed_s: float
    """Seconds of all pieces whose text is complete, in any order."""


class JoinedText:
    def __init__(self) -> None:
        self.text = ""
        self._blanks = ""
        self._is_piece_new = True

    def begin_piece(self) -> None:
        self._is_piece_new, self._blanks = True, ""

    def add(self, text: str) -> str:
        """Return the text to emit, which includes blanks held back earlier."""
        if self._is_piece_new:
            text = text.lstrip()
            if not text:
                return ""
            self._is_piece_new = False
            is_joined = _UNSPACED.match(self.text[-1:]) or _UNSPACED.match(text)
            self._blanks = " " if self.text and not is_joined else ""
        whole = self._blanks + text
        text = whole.rstrip()
        self._blanks = whole[len(text) :]
        self.text += text
        return text


_UNSPACED = re.compile(
    "[\u2e80-\u2fdf\u3000-\u312f\u3190-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff]"
)
"""Chinese characters, kana and their punctuation, which have no blanks between sentences. Korean has them."""


class _Piece(NamedTuple):
    start_s: float
    end_s: float
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob]


def _pieces(gathered: renderer.GatheredCall) -> Iterator[_Piece]:
    call = gathered.call
    ends_s = [*accumulate(prompt.sound_s for prompt in call.prompts)]
    for request, start_s, end_s in zip(call.requests, [0.0, *ends_s], ends_s, strict=False):
        answer = gathered.answers[request.id]
        renderer.finish_reason(answer.ended)
        text = renderer.content_of(answer.parts(call.reader())).strip()
        first = answer.answer_start
        yield _Piece(start_s, end_s, text, answer.tokens[first:], answer.logprobs[first:])


def _scored(entries: Sequence[TokenLogprob], pieces: PieceTexts) -> list[ScoredToken]:
    shown = [(pieces[entry.token], entry.logprob) for entry in entries]
    return [ScoredToken(piece.text, piece.bytes, finite_logprob(logprob)) for piece, logprob in shown]


@dataclass(frozen=True)
class TranscriptRenderer:
    form: str
    """`json`, `text`, `verbose_json`, `srt` or `vtt`."""
    task: str
    language: str | None
    temperature: float
    shows_logprobs: bool

    @property
    def media_type(self) -> str:
        texts = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}
        return texts.get(self.form, "application/json")

    def whole(self, gathered: renderer.GatheredCall) -> bytes:
        pieces, joined = list(_pieces(gathered)), JoinedText()
        for piece in pieces:
            joined.begin_piece()
            joined.add(piece.text)
        match self.form:
            case "text":
                return f"{joined.text}\n".encode()
            case "srt":
                return _subtitles(pieces, ",", is_numbered=True).encode()
            case "vtt":
                return f"WEBVTT\n\n{_subtitles(pieces, '.', is_numbered=False)}".encode()
            case "verbose_json":
                return msgspec.json.encode(self._verbose(pieces, joined.text, gathered.figures))
        entries = [entry for piece in pieces for entry in piece.logprobs]
        logprobs = _scored(entries, gathered.pieces) if self.shows_logprobs else UNSET
        usage = TranscriptTokens.of(gathered.figures)
        return msgspec.json.encode(Transcript(text=joined.text, logprobs=logprobs, usage=usage))

    def _verbose(self, pieces: Sequence[_Piece], text: str, figures: Figures) -> VerboseTranscript:
        language = self.language if self.task == "transcribe" else None
        spoken = [piece for piece in pieces if piece.text]
        return VerboseTranscript(
            task=self.task,
            language=language or _TASK_LANGUAGE[self.task],
            duration=round(figures.audio_s, 3),
            text=text,
            segments=[_segment(number, piece, self.temperature) for number, piece in enumerate(spoken)],
            usage=SoundDuration(seconds=round(figures.audio_s, 3)),
        )

    def stream(self, call: ResolvedRequest, shown: PieceTexts) -> TranscriptStream:
        return TranscriptStream(call, shown if self.shows_logprobs else None)


def _segment(number: int, piece: _Piece, temperature: float) -> TranscriptSegment:
    written = piece.text.encode()
    logprobs = [finite_logprob(entry.logprob) for entry in piece.logprobs]
    return TranscriptSegment(
        id=number,
        seek=round(100 * piece.start_s),
        start=round(piece.start_s, 3),
        end=round(piece.end_s, 3),
        text=piece.text,
        tokens=list(piece.tokens),
        temperature=temperature,
        avg_logprob=sum(logprobs) / max(1, len(logprobs)),
        compression_ratio=len(written) / len(zlib.compress(written)),
    )


def _subtitles(pieces: Sequence[_Piece], point: str, *, is_numbered: bool) -> str:
    """An empty line would end a subtitle."""
    spoken = [piece for piece in pieces if piece.text]
    blocks = []
    for number, piece in enumerate(spoken, 1):
        times = f"{_clock(piece.start_s, point)} --> {_clock(piece.end_s, point)}"
        lines = [line for line in piece.text.replace("-->", "->").splitlines() if line.strip()]
        blocks.append("\n".join([*([str(number)] if is_numbered else []), times, *lines, "", ""]))
    return "".join(blocks)


def _clock(seconds: float, point: str) -> str:
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"


class _PieceStream:
    def __init__(self, call: ResolvedRequest, sound_s: float) -> None:
        self.sound_s = sound_s
        self._reader = call.reader()
        self._content_scores = ContentScores()
        self.text = ""
        self.scores: list[TokenLogprob] = []
        self.has_ended = False

    def add(self, event: TokenEvent) -> None:
        self._content_scores.add(event)
        self.text += renderer.content_of(self._reader.read(event))
        self.scores += self._content_scores.take()
        if event.finish is not None:
            renderer.finish_reason(event.finish)
            self.has_ended = True


class TranscriptStream(renderer.Renderer):
    """Pieces are computed concurrently. The first unfinished one is streamed; later ones wait."""

    done_marker = b"[DONE]"

    def __init__(self, call: ResolvedRequest, shown: PieceTexts | None) -> None:
        self._pieces = {
            request.id: _PieceStream(call, prompt.sound_s)
            for request, prompt in zip(call.requests, call.prompts, strict=True)
        }
        self._shows_progress = call.details.progress
        self._waiting = [request.id for request in reversed(call.requests)]
        self._shown = shown
        self._joined = JoinedText()
        self._scores: list[ScoredToken] = []
        self._num_sent = 0

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[renderer.Chunk]:
        if self._waiting[-1:] != [request_id]:
            return ()
        return (self._progress(renderer.progress_field(progress, figures) + b","),)

    def _progress(self, field: bytes = b"") -> renderer.Chunk:
        """Report progress as an empty delta, which clients can append."""
        done_s = sum(piece.sound_s for piece in self._pieces.values() if piece.has_ended)
        total_s = sum(piece.sound_s for piece in self._pieces.values())
        recording = msgspec.json.encode(RecordingProgress(round(total_s, 3), round(done_s, 3)))
        head = b'{"type":"transcript.text.delta","delta":"",'
        return renderer.Chunk(b'%b%b"recording_progress":%b}' % (head, field, recording))

    def event(self, event: TokenEvent) -> Sequence[renderer.Chunk]:
        self._pieces[event.id].add(event)
        chunks = []
        while self._waiting:
            piece = self._pieces[self._waiting[-1]]
            if self._shown is not None:
                self._scores += _scored(piece.scores, self._shown)
            if delta := self._joined.add(piece.text):
                scores = UNSET if self._shown is None else self._scores[self._num_sent :]
                self._num_sent = len(self._scores)
                chunks.append(_chunk(TranscriptDelta(delta=delta, logprobs=scores)))
            piece.text, piece.scores = "", []
            if not piece.has_ended:
                break
            self._waiting.pop()
            self._joined.begin_piece()
        if event.finish is not None and self._shows_progress:
            chunks.append(self._progress())
        return chunks

    def end(self, figures: Figures) -> Sequence[renderer.Chunk]:
        scores = UNSET if self._shown is None else self._scores
        usage = TranscriptTokens.of(figures)
        return (_chunk(TranscriptDone(text=self._joined.text, logprobs=scores, usage=usage)),)


def _chunk(event: msgspec.Struct) -> renderer.Chunk:
    return renderer.Chunk(renderer.escaped_line_ends(msgspec.json.encode(event)))
