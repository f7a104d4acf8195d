"""Reads clients' Lark, and translates rules into llguidance's dialect of Lark with exactly the same language.

`structured.maker` calls the translation for each grammar, once; `openai-cpu-server grammar` and tests do so
too. It decides which parts become lexemes, breaks those that a greedy reader would read wrongly, and writes
the text. `reading` and `meaning` make rules of the grammars that custom tools come with: these are never run
as they came. All work is counted, so that a grammar passes or fails on every machine. Pure.
"""
