"""HTTP for all API families. The web server (`server`, `frames`) calls the `application`, whose `gate` checks
the key and its limits, and puts a `RequestContext` into the scope for the handler. Families decorate their
handlers with rows of the table (`routes`). No handler is reached except through the gate. Each request ends
once, with a line in the log and an event for the watch; those without a response of their own run inside
`served`. One table (`errors`) turns failures into statuses."""
