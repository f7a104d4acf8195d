"""Clients' Lark, which never runs as it came, and translation of rules into llguidance's dialect.

All work is counted, so that a grammar passes or fails on every machine.
"""
