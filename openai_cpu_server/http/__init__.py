"""What is HTTP, and of no family: connections, keys, limits, one table of routes, errors.

The web server (`server`, `connection`, `frames`) calls the `application` for each request. Its `gate` finds
out who asks, holds them to what they may use, and puts one `RequestContext` into the scope, where handlers
find it; what has no response of its own (a message of a WebSocket, one prompt of many) is served inside
`served`. Families and rooms of administration have their rows of the table (`routes`) beside their handlers;
of them are made the router, what each route asks for, and the OpenAPI document. Promises: no handler is
reached but through the gate; every request ends once, with a line in the log and news for the watch; a
failure becomes a status in one table (`errors`), and what is ours goes to the log, whole.
"""
