from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, Union

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.pooling.schema import Vectors
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.errors import GenerationFailed

_DIGITS = 9
"""Digits that distinguish all float32 values."""
_LOG10_OF_2 = 0.30103
_POWERS = 10.0 ** np.arange(23)
"""Powers that are exact in float64."""
_ENCODER = msgspec.json.Encoder()


def checked(rows: Vectors) -> Vectors:
    """Raise GenerationFailed for numbers that JSON cannot express."""
    if not np.isfinite(rows).all():
        raise GenerationFailed("The model computed a value that is not a number.")
    return rows


def normalised(rows: Vectors) -> Vectors:
    """Zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


class LlamaVector(msgspec.Struct, frozen=True):
    index: int
    embedding: list[list[float]]


def llama_vectors(rows: Vectors, figures: Figures, *, is_normalised: bool) -> bytes:
    vectors = as_numbers(normalised(checked(rows)) if is_normalised else checked(rows))
    return b"[%b]" % b",".join(b'{"index":%d,"embedding":[%b]}' % each for each in enumerate(vectors))


def as_base64(rows: Vectors) -> Iterator[bytes]:
    num_bytes = 4 * rows.shape[1]
    raw = rows.astype("<f4", copy=False).tobytes()
    for start in range(0, len(raw), num_bytes):
        yield b'"%b"' % binascii.b2a_base64(raw[start : start + num_bytes], newline=False)


def as_numbers(rows: Vectors) -> Iterator[bytes]:
    """Yield a JSON array per row, so that other threads get their turn in between."""
    # Rounded to the fewest digits of the same float32. JSON of float64 is 1.6 times as long, and Python's
    # parser takes three times as long.
    wide = rows.astype(np.float64)
    _, exponents = np.frexp(wide)
    decimals = _DIGITS - np.ceil(exponents * _LOG10_OF_2).astype(np.int64)
    powers = _POWERS[np.clip(decimals, 0, len(_POWERS) - 1)]
    for row in np.rint(wide * powers) / powers:
        yield _ENCODER.encode(row.tolist())


class InputUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, tokens: int) -> InputUsage:
        return cls(tokens, tokens)


AnswerHead = Mapping[str, Any]


class EmbeddingItem(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "embedding"
    index: int
    embedding: Union[list[float], str]
    """Base64 contains little-endian float32."""


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of the response, whose bytes `embedding_list` formats."""

    object: str = "list"
    data: list[EmbeddingItem]
    model: str
    usage: InputUsage
    timings: dict[str, float]


def embedding_list(
    rows: Vectors,
    figures: Figures,
    *,
    model: str,
    prompt_tokens: int,
    is_base64: bool,
    dimensions: int | None,
) -> bytes:
    """Join the pieces once, because the whole may have 10 MB."""
    vectors = normalised(checked(rows)[:, :dimensions])
    pieces = [b'{"object":"list","data":[']
    for index, text in enumerate(as_base64(vectors) if is_base64 else as_numbers(vectors)):
        item = b'%b{"object":"embedding","index":%d,"embedding":%b}'
        pieces.append(item % (b"," if index else b"", index, text))
    usage, timings = InputUsage.of(prompt_tokens), timings_of(figures)
    tail = tuple(map(msgspec.json.encode, (model, usage, timings)))
    return b"".join((*pieces, b'],"model":%b,"usage":%b,"timings":%b}' % tail))


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
ScoresOf = Callable[[Vectors], Scores]


def cosines(rows: Vectors, *, num_queries: int = 1) -> Scores:
    """Compare the first row with the others, or as many first rows with as many others."""
    vectors = normalised(rows).astype(np.float64)
    found: Scores = (vectors[num_queries:] * vectors[:num_queries]).sum(axis=1)
    return found


def first_numbers(rows: Vectors) -> Scores:
    return rows[:, 0].astype(np.float64)


def probabilities(rows: Vectors) -> Scores:
    return 1 / (1 + np.exp(-first_numbers(rows)))


def ranking(
    head: AnswerHead,
    scores_of: ScoresOf,
    rows: Vectors,
    figures: Figures,
    *,
    top_n: int | None,
    documents: tuple[str, ...] | None,
) -> bytes:
    results = [
        RankedResult(
            index=index,
            relevance_score=score,
            document=UNSET if documents is None else RankedDocument(documents[index]),
        )
        for index, score in _best_first(scores_of(checked(rows)))[:top_n]
    ]
    return msgspec.json.encode(Reranked(results=results, timings=timings_of(figures), **head))


def _best_first(scores: Scores) -> list[tuple[int, float]]:
    return sorted(enumerate(scores.tolist()), key=lambda each: -each[1])


class RankedText(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    score: float
    text: Union[str, UnsetType] = UNSET


def text_ranking(
    scores_of: ScoresOf, rows: Vectors, figures: Figures, *, top_n: int | None, texts: tuple[str, ...] | None
) -> bytes:
    return msgspec.json.encode(
        [
            RankedText(index=index, score=score, text=UNSET if texts is None else texts[index])
            for index, score in _best_first(scores_of(checked(rows)))[:top_n]
        ]
    )


T = TypeVar("T")


class PooledList(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[T]
    usage: InputUsage
    timings: dict[str, float]


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(PooledList[Classified], frozen=True, kw_only=True):
    pass


def class_list(
    head: AnswerHead, rows: Vectors, figures: Figures, *, labels: tuple[str, ...], activates: bool
) -> bytes:
    numbers = checked(rows).astype(np.float64)
    data = []
    for index, row in enumerate(_class_probabilities(numbers) if activates else numbers):
        probs: list[float] = row.tolist()
        best = probs.index(max(probs))
        label = labels[best] if best < len(labels) else f"LABEL_{best}"
        data.append(Classified(index=index, label=label, probs=probs, num_classes=len(probs)))
    timings = timings_of(figures)
    return msgspec.json.encode(ClassList(created=int(time.time()), data=data, timings=timings, **head))


def _class_probabilities(numbers: Scores) -> Scores:
    if numbers.shape[1] == 1:
        return 1 / (1 + np.exp(-numbers))
    raised = np.exp(numbers - numbers.max(axis=1, keepdims=True))
    shares: Scores = raised / raised.sum(axis=1, keepdims=True)
    return shares


class ScoredPair(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: str = "score"
    score: float


class ScoreList(PooledList[ScoredPair], frozen=True, kw_only=True):
    pass


def score_list(head: AnswerHead, scores_of: ScoresOf, rows: Vectors, figures: Figures) -> bytes:
    scores: list[float] = scores_of(checked(rows)).tolist()
    data = [ScoredPair(index=index, score=score) for index, score in enumerate(scores)]
    timings = timings_of(figures)
    return msgspec.json.encode(ScoreList(created=int(time.time()), data=data, timings=timings, **head))


class OllamaVectors(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    """Nanoseconds."""
    load_duration: int
    """Waiting time, with loading of the model."""
    prompt_eval_count: int


def ollama_vectors(
    rows: Vectors, figures: Figures, *, model: str, prompt_tokens: int, dimensions: int | None
) -> bytes:
    vectors = b",".join(as_numbers(normalised(checked(rows)[:, :dimensions])))
    total, waited = (round(1e6 * ms) for ms in (figures.latency_ms, figures.queue_ms))
    counts = (total, waited, prompt_tokens)
    tail = b'"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}' % counts
    return b'{"model":%b,"embeddings":[%b],%b' % (msgspec.json.encode(model), vectors, tail)


class OllamaVector(msgspec.Struct, frozen=True):
    embedding: list[float]


def ollama_vector(rows: Vectors, figures: Figures) -> bytes:
    """The older route does not normalize."""
    return b'{"embedding":%b}' % (b"".join(as_numbers(checked(rows))) or b"[]")


def timings_of(figures: Figures) -> dict[str, float]:
    return {
        "queue_ms": round(figures.queue_ms, 3),
        "compute_ms": round(figures.prefill_ms, 3),
        "latency_ms": round(figures.latency_ms, 3),
        "tokens_per_second": round(figures.tokens_per_second, 3),
    }
