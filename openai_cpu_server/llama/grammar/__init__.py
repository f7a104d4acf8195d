"""Grammars, executed by llguidance."""
