"""Thoughts in front of an answer: how families of models mark them, and how they are read."""
