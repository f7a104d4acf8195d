"""Clients' Lark, and translation of rules into llguidance's dialect of Lark with exactly the same language.

Called by `structured.compiler` once for each grammar, and by `openai-cpu-server grammar`. The translation
chooses lexemes, breaks those that a greedy reader would read wrongly, and writes the text. `reading` and
`meaning` make rules of the grammars of custom tools, which never run as they came. All work is counted, so
that a grammar passes or fails on every machine.
"""
