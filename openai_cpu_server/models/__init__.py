"""Served models, and the mapping of names to them.

`server` registers models, the API looks names up, and a `ModelKeeper` loads them as memory allows. Models
that a caller may not use do not exist for it. The package knows no HTTP and no process.
"""
