"""Responses of `/v1/embeddings` and `/v1/rerank`: vectors, as numbers or base64, and scores."""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Union

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.pooling.body import Rows
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.errors import GenerationFailed

_DIGITS = 9
"""Significant digits that distinguish all float32 values."""
_LOG10_OF_2 = 0.30103
_POWERS = 10.0 ** np.arange(23)
"""Powers of ten that are exact in float64."""
_ENCODER = msgspec.json.Encoder()


def checked(rows: Rows) -> Rows:
    """Return the rows. Raises GenerationFailed for numbers that JSON cannot express."""
    if not np.isfinite(rows).all():
        raise GenerationFailed("The model has computed something that is no number.")
    return rows


def normalised(rows: Rows) -> Rows:
    """Scale each row to length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


class LlamaVector(msgspec.Struct, frozen=True):
    index: int
    embedding: list[list[float]]


class LlamaVectorsWriter(msgspec.Struct, frozen=True):
    is_normalised: bool

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        vectors = as_numbers(normalised(checked(rows)) if self.is_normalised else checked(rows))
        told = (b'{"index":%d,"embedding":[%b]}' % each for each in enumerate(vectors))
        return b"[%b]" % b",".join(told)


def as_base64(rows: Rows) -> Iterator[bytes]:
    num_bytes = 4 * rows.shape[1]
    raw = rows.astype("<f4", copy=False).tobytes()
    for start in range(0, len(raw), num_bytes):
        yield b'"%b"' % binascii.b2a_base64(raw[start : start + num_bytes], newline=False)


def as_numbers(rows: Rows) -> Iterator[bytes]:
    """Yield a JSON array per row, so that other threads get their turn in between."""
    for row in _shortened(rows):
        yield _ENCODER.encode(row.tolist())


def _shortened(rows: Rows) -> npt.NDArray[np.float64]:
    """Round to the fewest digits of the same float32. JSON of float64 is 1.6 times as long, and Python's
    parser takes three times as long."""
    wide = rows.astype(np.float64)
    _, exponents = np.frexp(wide)
    decimals = _DIGITS - np.ceil(exponents * _LOG10_OF_2).astype(np.int64)
    powers = _POWERS[np.clip(decimals, 0, len(_POWERS) - 1)]
    shortened: npt.NDArray[np.float64] = np.rint(wide * powers) / powers
    return shortened


_ITEM = b'%b{"object":"embedding","index":%d,"embedding":%b}'


class InputUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, tokens: int) -> InputUsage:
        return cls(tokens, tokens)


class EmbeddingItem(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "embedding"
    index: int
    embedding: Union[list[float], str]
    """Base64 contains little-endian float32."""


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of the response, whose bytes `EmbeddingWriter` formats."""

    object: str = "list"
    data: list[EmbeddingItem]
    model: str
    usage: InputUsage
    timings: dict[str, float]


class EmbeddingWriter(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    prompt_tokens: int
    is_base64: bool
    dimensions: int | None

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        vectors = normalised(checked(rows)[:, : self.dimensions])
        texts = as_base64(vectors) if self.is_base64 else as_numbers(vectors)
        return b"".join(self._parts(texts, figures))

    def _parts(self, texts: Iterable[bytes], figures: Figures) -> Iterator[bytes]:
        """Joined once, because the whole may have 10 MB."""
        yield b'{"object":"list","data":['
        for index, text in enumerate(texts):
            yield _ITEM % (b"," if index else b"", index, text)
        usage = msgspec.json.encode(InputUsage.of(self.prompt_tokens))
        tail = (msgspec.json.encode(self.model), usage, msgspec.json.encode(_shown(figures)))
        yield b'],"model":%b,"usage":%b,"timings":%b}' % tail


class RankedDocument(msgspec.Struct, frozen=True):
    text: str


class RankedResult(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    relevance_score: float
    document: Union[RankedDocument, UnsetType] = UNSET


class Reranked(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    model: str
    results: list[RankedResult]
    usage: InputUsage
    timings: dict[str, float]


Scores = npt.NDArray[np.float64]


def cosines(rows: Rows, *, num_queries: int = 1) -> Scores:
    """Compare the first row with the others, or as many first rows with as many others."""
    vectors = normalised(rows).astype(np.float64)
    found: Scores = (vectors[num_queries:] * vectors[:num_queries]).sum(axis=1)
    return found


def first_numbers(rows: Rows) -> Scores:
    return rows[:, 0].astype(np.float64)


def probabilities(rows: Rows) -> Scores:
    return 1 / (1 + np.exp(-first_numbers(rows)))


class RankingWriter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    prompt_tokens: int
    top_n: int | None
    documents: tuple[str, ...] | None
    scores_of: Callable[[Rows], Scores]

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        best_first = _best_first(self.scores_of(checked(rows)))
        answer = Reranked(
            id=self.id,
            model=self.model,
            results=[self._result(index, score) for index, score in best_first[: self.top_n]],
            usage=InputUsage.of(self.prompt_tokens),
            timings=_shown(figures),
        )
        return msgspec.json.encode(answer)

    def _result(self, index: int, score: float) -> RankedResult:
        document = UNSET if self.documents is None else RankedDocument(self.documents[index])
        return RankedResult(index=index, relevance_score=score, document=document)


def _best_first(scores: Scores) -> list[tuple[int, float]]:
    return sorted(enumerate(scores.tolist()), key=lambda each: -each[1])


class RankedText(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    score: float
    text: Union[str, UnsetType] = UNSET


class TextRankingWriter(msgspec.Struct, frozen=True, kw_only=True):
    top_n: int | None
    texts: tuple[str, ...] | None
    scores_of: Callable[[Rows], Scores]

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        best_first = _best_first(self.scores_of(checked(rows)))
        texts = self.texts
        return msgspec.json.encode(
            [
                RankedText(index=index, score=score, text=UNSET if texts is None else texts[index])
                for index, score in best_first[: self.top_n]
            ]
        )


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Classified]
    usage: InputUsage
    timings: dict[str, float]


class ClassesWriter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    prompt_tokens: int
    labels: tuple[str, ...]
    activates: bool

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        numbers = checked(rows).astype(np.float64)
        told = _of_classes(numbers) if self.activates else numbers
        answer = ClassList(
            id=self.id,
            created=int(time.time()),
            model=self.model,
            data=[self._classified(index, row.tolist()) for index, row in enumerate(told)],
            usage=InputUsage.of(self.prompt_tokens),
            timings=_shown(figures),
        )
        return msgspec.json.encode(answer)

    def _classified(self, index: int, told: list[float]) -> Classified:
        best = told.index(max(told))
        label = self.labels[best] if best < len(self.labels) else f"LABEL_{best}"
        return Classified(index=index, label=label, probs=told, num_classes=len(told))


def _of_classes(numbers: Scores) -> Scores:
    if numbers.shape[1] == 1:
        return 1 / (1 + np.exp(-numbers))
    raised = np.exp(numbers - numbers.max(axis=1, keepdims=True))
    shares: Scores = raised / raised.sum(axis=1, keepdims=True)
    return shares


class ScoredPair(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: str = "score"
    score: float


class ScoreList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ScoredPair]
    usage: InputUsage
    timings: dict[str, float]


class ScoresWriter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    prompt_tokens: int
    scores_of: Callable[[Rows], Scores]

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        scores: list[float] = self.scores_of(checked(rows)).tolist()
        answer = ScoreList(
            id=self.id,
            created=int(time.time()),
            model=self.model,
            data=[ScoredPair(index=index, score=score) for index, score in enumerate(scores)],
            usage=InputUsage.of(self.prompt_tokens),
            timings=_shown(figures),
        )
        return msgspec.json.encode(answer)


def _shown(figures: Figures) -> dict[str, float]:
    return {
        "queue_ms": round(figures.queue_ms, 3),
        "compute_ms": round(figures.prefill_ms, 3),
        "latency_ms": round(figures.latency_ms, 3),
        "tokens_per_second": round(figures.tokens_per_second, 3),
    }
