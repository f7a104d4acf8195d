"""Served models, and the mapping of names to them.

`server` keeps a `ServedModel` for each model in a `ModelRegistry`, where the API looks names up. A
`ModelKeeper` loads a model if it fits beside those that stay; one that cannot be read reports the reason. A
caller who may not use a model cannot tell that it exists. The package knows no HTTP and no process.
"""
