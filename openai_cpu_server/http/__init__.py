"""HTTP for all API families: connections, keys, limits, the table of routes, errors. The web server
(`server`, `connection`, `frames`) calls the `application`. Its `gate` checks the key and its limits, and puts
a `RequestContext` into the scope for the handler. Requests without a response of their own, such as a message
of a WebSocket, run inside `served`. Families and `api/admin` declare rows of the table (`routes`) beside
their handlers.

No handler is reached except through the gate. Each request ends once, with a line in the log and an event for
the watch. One table (`errors`) turns failures into statuses, and internal failures are logged in full.
"""
