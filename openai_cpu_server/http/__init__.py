"""What is HTTP, and of no family.

The web server calls the application for each request: its gate finds out who asks, holds them to what they
may use, and puts one `RequestContext` into the scope, where handlers find it. Routes stand in one table, of
which the router, what each needs, and the OpenAPI document are made. Failures become statuses in one table.
It promises that every request ends once: with a line in the log, and with news for the watch.
"""
