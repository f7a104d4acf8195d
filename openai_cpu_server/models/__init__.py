"""Served models, and the mapping of names to them.

`server` makes a `ServedModel` for each model and keeps them in a `ModelRegistry`. The API looks names up in
it, and asks the `ModelKeeper` for models that are not in memory. A caller who may not use a model cannot tell
that it exists. A model is loaded only if it fits beside those that stay; one that cannot be read reports the
reason. The package knows no HTTP and no process.
"""
