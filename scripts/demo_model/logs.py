"""The names of the logs that a training run writes, for programs that do without PyTorch."""

from __future__ import annotations

STEPS_LOG, TRIALS_LOG = "steps.jsonl", "trials.jsonl"
"""One JSON object per line: means of every tenth step; held-out losses."""
