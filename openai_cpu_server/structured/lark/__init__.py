"""Clients' Lark, and translation of rules into llguidance's dialect with exactly the same language.

Clients' Lark never runs as it came: `reading` and `meaning` make rules of it. All work is counted, so that a
grammar passes or fails on every machine.
"""
