"""Writes grammars as GBNF text."""
