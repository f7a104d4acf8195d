"""Served models, and the mapping of names to them.

`server` keeps a `ServedModel` for each model in a `ModelRegistry`, where the API looks names up. A
`ModelKeeper` loads a model if it fits beside those that stay; one that cannot be read reports the reason.
For a caller, models that the caller may not use do not exist. The package knows no HTTP and no process.
"""
