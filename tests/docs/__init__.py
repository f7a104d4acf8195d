"""Tests of the README and the manual against the code."""
