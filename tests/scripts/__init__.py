"""Tests of the scripts: figures, verdicts, and the start of each."""
