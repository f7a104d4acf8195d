"""The whole corpus: every maker with its share. Document i is made alone, from (seed, split, i)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass

from demo_model.corpus import (
    arithmetic,
    classification,
    extraction,
    lists,
    paragraphs,
    plain,
    recall,
    smalltalk,
    stories,
    tools,
    transform,
)
from demo_model.corpus.example import Example, Maker, Split


@dataclass(frozen=True)
class Mixture:
    """`shares`: of each kind among the documents; they need not add up to one."""

    makers: Mapping[str, Maker]
    shares: Mapping[str, float]
    seed: int

    def document(self, split: Split, index: int) -> Example:
        generator = random.Random(f"{self.seed}/{split.value}/{index}")
        kinds = list(self.makers)
        bounds = list(itertools.accumulate(self.shares[kind] for kind in kinds))
        kind = generator.choices(kinds, cum_weights=bounds)[0]
        return self.makers[kind](generator, split)

    def document_of(self, kind: str, split: Split, index: int) -> Example:
        return self.makers[kind](random.Random(f"{self.seed}/{split.value}/{kind}/{index}"), split)


_SHARES: tuple[tuple[Mapping[str, Maker], float], ...] = (
    (stories.MAKERS, 0.10),
    (plain.MAKERS, 0.03),
    (arithmetic.MAKERS, 0.06),
    (lists.MAKERS, 0.05),
    (transform.MAKERS, 0.07),
    (smalltalk.MAKERS, 0.04),
    (paragraphs.MAKERS, 0.16),
    (extraction.MAKERS, 0.18),
    (classification.MAKERS, 0.11),
    (tools.MAKERS, 0.17),
    (recall.MAKERS, 0.08),
)
"""A module's share is split evenly between its kinds."""


def whole_mixture(seed: int) -> Mixture:
    """All makers."""
    makers = {kind: maker for found, _ in _SHARES for kind, maker in found.items()}
    shares = {kind: share / len(found) for found, share in _SHARES for kind in found}
    return Mixture(makers, shares, seed)
