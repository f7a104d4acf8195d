"""Assembly of a server: models with their engines, the API over them, and a socket.

`cli` calls it for `serve` and `batch`, and `replicas.ray` in each process. It owns the engine processes. A
start that must fail raises StartupError with one line, before anything slow where possible; later the failure
of one model affects no other.
"""
