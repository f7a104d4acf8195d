"""What asks no model to generate: models, adapters, caches, live requests, health, metrics, usage, tokens,
the page.

`api/application.py` names its routes, and requests reach them behind the gate. Promises: it reads what
engines tell of themselves, and changes something only for keys of administrators; what machines ask all the
time (`health`) costs no line in the log.
"""
