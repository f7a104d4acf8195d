"""Typical JSON Schemas of answers, limited so that a random model ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.traffic import BenchRequest, JsonSchema

ALL: list[JsonSchema] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def following(requests: Sequence[BenchRequest]) -> list[BenchRequest]:
    return [msgspec.structs.replace(request, schema=ALL[i % len(ALL)]) for i, request in enumerate(requests)]
