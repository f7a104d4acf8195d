"""Clients' Lark, and translation of rules into llguidance's dialect of Lark with exactly the same
language. Called by `structured.compiler` once for each grammar, and by `openai-cpu-server grammar`.
Clients' Lark never runs as it came: `reading` and `meaning` make rules of it. All work is counted, so that
a grammar passes or fails on every machine."""
