"""A JSON Schema as nodes: read by its draft, references followed, each keyword checked once.

An unknown or unenforceable keyword is reported with its JSON pointer, or noted if the request is not strict.
"""
