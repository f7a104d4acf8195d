"""Finds which draft of JSON Schema a document uses, as far as keywords have different meanings in them."""

from __future__ import annotations

import enum

from openai_cpu_server.structured.schema.json_types import Json


class Draft(enum.Enum):
    THREE = ("draft-03",)
    """The draft that is not supported."""
    OLD = ("draft-04", "draft-05", "draft-06", "draft-07")
    """The drafts in which `$ref` silences the keywords beside it."""
    D2019 = ("2019-09",)
    D2020 = ("2020-12",)
    """This draft, and all documents that name none."""


def draft_of(root: Json) -> Draft:
    dialect = root.get("$schema") if isinstance(root, dict) else None
    named = (d for d in Draft if isinstance(dialect, str) and any(name in dialect for name in d.value))
    return next(named, Draft.D2020)
