"""How a server is put together: from settings to models with their engines, the API over them, a socket.

`cli` calls it at the start of `serve` and `batch`, and `replicas.ray` for each of its processes. It finds and
reads the models, plans their memory, builds what serves them, and owns the engine processes until the end.
What cannot begin is one line in a StartupError, before anything slow where that is possible; once it serves,
one model's failure is that model's state and nobody else's. All other rooms lie below and know nothing of it.
"""
