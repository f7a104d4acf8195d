"""Checks of `deploy/`: its files are well formed, name what exists, and do what they promise."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
