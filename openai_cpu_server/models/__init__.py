"""The models that the server serves: what belongs to each, and which one a request means.

`server` makes a `ServedModel` of each and keeps them in a `ModelRegistry`; the API looks names up in it,
and asks the `ModelKeeper` for models that are not in memory.
Promises: who may not use a model cannot tell that it exists; a model is loaded only where it fits beside
those that stay; one that cannot be read answers with the reason. It knows no HTTP and no process.
"""
