"""The rooms of scripts/benchmark.py."""
