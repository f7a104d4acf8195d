"""HTTP for all API families: connections, keys, limits, the table of routes, errors. The web server
(`server`, `frames`) calls the `application`. Its `gate` checks the key and its limits, and puts
a `RequestContext` into the scope for the handler. API families decorate their handlers with rows of the
table (`routes`), and run requests without a response of their own inside `served`.

No handler is reached except through the gate. Each request ends once, with a line in the log and an event for
the watch. One table (`errors`) turns failures into statuses.
"""
