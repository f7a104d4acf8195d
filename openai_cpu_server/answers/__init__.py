"""Caches of answers: what has been answered once is told again, to the same question or to one like it."""
