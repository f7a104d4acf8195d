"""Grammars, which llguidance executes."""
