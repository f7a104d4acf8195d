"""Assembly of a server: from settings to models with their engines, the API over them, and a socket.

`cli` calls it for `serve` and `batch`, and `replicas.ray` in each of its processes. It plans and builds the
models and owns the engine processes. A start that must fail raises StartupError with one line, before
anything slow where possible. Afterwards the failure of one model affects no other.
"""
