"""A JSON Schema as nodes: read with its draft, its references followed, each keyword checked once. `compiler`
calls it first, for the whole schema. Promises: a keyword that is unknown here, or cannot be enforced, is
named with its JSON pointer, or noted where the request is not strict; chains of references are followed
without recursion.
"""
