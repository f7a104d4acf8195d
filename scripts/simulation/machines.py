"""Step costs of measured machines: the curves that `serve` keeps beside its models."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_cpu_server.contract.model_info import CostCurve

_BILLION = CostCurve(
    step_ms=(
        (1, 41.2),
        (2, 45.8),
        (4, 54.5),
        (8, 66.3),
        (12, 81.0),
        (15, 96.7),
        (16, 96.9),
        (17, 102.3),
        (24, 121.2),
        (32, 161.8),
        (48, 200.2),
        (64, 253.7),
        (128, 461.1),
        (256, 882.4),
    ),
    attended_ms=0.000872,
)
_SMOLLM2 = CostCurve(
    step_ms=(
        (1, 8.29),
        (2, 8.70),
        (4, 9.95),
        (8, 12.5),
        (12, 15.9),
        (15, 18.5),
        (16, 19.3),
        (17, 20.1),
        (24, 25.3),
        (32, 31.8),
        (48, 39.1),
        (64, 47.7),
        (128, 88.6),
        (256, 134.9),
    ),
    attended_ms=0.000629,
)
CURVES = {"1b": _BILLION, "smollm2": _SMOLLM2}
"""Measured by the server at its start (`--calibrate start`) on two cores of an AMD EPYC (Zen 4) with our
kernels: 1.04 billion parameters in Q4_K_M, and SmolLM2 135M in Q4_0."""


class _Kept(msgspec.Struct):
    value: CostCurve


def read_curve(name: str) -> CostCurve:
    """Return one of `CURVES`, or that of a file from a server's cache folder: `curve-*.json`."""
    if name in CURVES:
        return CURVES[name]
    return msgspec.json.decode(Path(name).read_bytes(), type=_Kept).value
