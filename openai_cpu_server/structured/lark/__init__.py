"""Translates rules into llguidance's dialect of Lark, with exactly the same language.

`structured.maker` calls it for each grammar, once; `openai-cpu-server grammar` and tests do so too. It
decides which parts become lexemes, breaks those that a greedy reader would read wrongly, and writes the text.
Its work is counted, so that a grammar passes or fails on every machine. Pure.
"""
