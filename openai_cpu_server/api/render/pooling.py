"""The answers of `/v1/embeddings` and `/v1/rerank`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Union

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.calls.pooling import Rows
from openai_cpu_server.api.render.vectors import as_base64, as_numbers, checked, normalised
from openai_cpu_server.contract.figures import Figures

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
    """With `encoding_format` `base64`: the bytes of its float32."""


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """It describes the answer, whose bytes `EmbeddingWriter` puts together."""

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
    """So many of a vector's numbers are kept; None: all."""

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        """Raises GenerationFailed for vectors that are none."""
        vectors = normalised(checked(rows)[:, : self.dimensions])
        texts = as_base64(vectors) if self.is_base64 else as_numbers(vectors)
        return b"".join(self._parts(texts, figures))

    def _parts(self, texts: Iterable[bytes], figures: Figures) -> Iterator[bytes]:
        """They are put together once: the whole may have ten megabytes."""
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
    """The document's place among those that were sent."""
    relevance_score: float
    document: Union[RankedDocument, UnsetType] = UNSET


class Reranked(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    model: str
    results: list[RankedResult]
    """The best first."""
    usage: InputUsage
    timings: dict[str, float]


class RankingWriter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    prompt_tokens: int
    top_n: int | None
    documents: tuple[str, ...] | None
    """None: they are not returned."""

    def write(self, scores: Sequence[float], figures: Figures) -> bytes:
        """Documents of equal scores keep their order."""
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        answer = Reranked(
            id=self.id,
            model=self.model,
            results=[self._result(index, scores[index]) for index in best_first[: self.top_n]],
            usage=InputUsage.of(self.prompt_tokens),
            timings=_shown(figures),
        )
        return msgspec.json.encode(answer)

    def _result(self, index: int, score: float) -> RankedResult:
        document = UNSET if self.documents is None else RankedDocument(self.documents[index])
        return RankedResult(index=index, relevance_score=score, document=document)


class CosineWriter(RankingWriter, frozen=True, kw_only=True):
    """Ranks by the cosines between the first row and the others."""

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        vectors = normalised(checked(rows)).astype(np.float64)
        return self.write((vectors[1:] @ vectors[0]).tolist(), figures)


class ScoreWriter(RankingWriter, frozen=True, kw_only=True):
    """Ranks by the first number of each row."""

    squeezes: bool
    """The numbers become probabilities by the logistic function."""

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        scores = checked(rows)[:, 0].astype(np.float64)
        return self.write((1 / (1 + np.exp(-scores)) if self.squeezes else scores).tolist(), figures)


def _shown(figures: Figures) -> dict[str, float]:
    """Rounds to three decimals."""
    return {
        "queue_ms": round(figures.queue_ms, 3),
        "compute_ms": round(figures.prefill_ms, 3),
        "latency_ms": round(figures.latency_ms, 3),
        "tokens_per_second": round(figures.tokens_per_second, 3),
    }
